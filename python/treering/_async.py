# SPDX-License-Identifier: Apache-2.0
"""`await request`: the event's descriptor in the program's asyncio loop."""
import asyncio


async def ended(request):
    """The result of the request, when it has ended."""
    if not request.test():
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        descriptor = request.fileno()
        loop.add_reader(descriptor, lambda: readable.done() or readable.set_result(None))
        try:
            await readable
        finally:
            loop.remove_reader(descriptor)
    return request.wait()
