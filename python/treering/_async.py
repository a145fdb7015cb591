# SPDX-License-Identifier: Apache-2.0
"""`await request`: the event's descriptor in the program's asyncio loop."""
import asyncio
import os


async def ended(request):
    """The result of the request, when it has ended."""
    while not request.test():
        loop = asyncio.get_running_loop()
        readable = loop.create_future()
        # One of its own: a loop has one reader for a descriptor, and several tasks may await one request.
        descriptor = os.dup(request.fileno())
        loop.add_reader(descriptor, lambda: readable.done() or readable.set_result(None))
        try:
            await readable
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
    return request.wait()
