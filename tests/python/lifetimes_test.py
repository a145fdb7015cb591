# SPDX-License-Identifier: Apache-2.0
"""What a request holds lives as long as its call, and what it raises is its own."""
import unittest

from processes import run


class Lifetimes(unittest.TestCase):
    def assert_prints(self, text, *words):
        code, printed, errors = run(text, "-n", "2")
        self.assertEqual((code, sorted(printed.split())), (0, sorted(words)), errors)

    def test_a_failed_group_keeps_what_is_under_way(self):
        self.assert_prints("""
            import gc, weakref
            import numpy, treering

            class Array(numpy.ndarray):
                pass

            comm = treering.init()
            other, go = comm.dup(), comm.dup()
            comm.barrier()
            x, out = numpy.ones(100000).view(Array), numpy.zeros(100000)
            alive = weakref.ref(x)
            if comm.rank == 0:
                stream = treering.Stream()
                try:
                    with treering.Group():
                        comm.allreduce(x, out=out, stream=stream)
                        other.recv(numpy.ones(1), 1)
                except treering.RemoteError:
                    pass
                del x
                gc.collect()
                print("alive" if alive() is not None else "freed", flush=True)
                go.barrier()
                stream.synchronize()
                print(out[0], flush=True)
                comm.barrier()  # a later call looks at what has ended
                print("freed" if alive() is None else "kept", flush=True)
            else:
                other.close()
                go.barrier()
                comm.allreduce(x)
                comm.barrier()
            go.barrier()
        """, "alive", "2.0", "freed")

    def test_a_call_under_way_holds_its_array(self):
        self.assert_prints("""
            import gc, weakref
            import numpy, treering

            class Array(numpy.ndarray):
                pass

            comm = treering.init()
            go = comm.dup()
            x = numpy.ones(100000).view(Array)
            alive = weakref.ref(x)
            grown = bytearray(8)
            if comm.rank == 0:
                stream = treering.Stream()
                comm.allreduce(x, stream=stream)
                request = comm.allreduce(grown, out=grown, stream=stream)
                del x
                gc.collect()
                print("alive" if alive() is not None else "freed", flush=True)
                try:
                    grown.append(1)
                except BufferError:
                    print("held", flush=True)
                go.barrier()
                request.wait()
                grown.append(1)
                comm.barrier()  # looks at the request that was dropped
                print("freed" if alive() is None else "kept", flush=True)
            else:
                go.barrier()
                comm.allreduce(x)
                comm.allreduce(grown)
                comm.barrier()
            go.barrier()
        """, "alive", "held", "freed")

    def test_a_child_has_events_of_its_own(self):
        self.assert_prints("""
            import os
            import numpy, treering
            comm = treering.init()
            stream = treering.Stream()
            for early in [comm.allreduce(numpy.ones(1), stream=stream) for _ in range(3)]:
                early.wait()  # of which events are left
            request = comm.allreduce(numpy.ones(1), stream=stream)
            child = os.fork()
            if child == 0:
                del request
                own = treering.init_rank(1, treering.unique_id(), 0)
                again = treering.Stream()
                assert own.allreduce(numpy.ones(1), stream=again).wait()[0] == 1
                again.synchronize()
                os._exit(0)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            print(request.wait()[0], flush=True)
            comm.barrier()
        """, "2.0", "2.0")

    def test_the_failure_of_another_communicator(self):
        self.assert_prints("""
            import numpy, treering
            comm = treering.init()
            bad = comm.dup()
            comm.barrier()
            if comm.rank == 0:
                stream = treering.Stream()
                lost = bad.recv(numpy.ones(1), 1, stream=stream)
                request = comm.allreduce(numpy.ones(1), stream=stream)
                print(request.wait()[0], flush=True)
                try:
                    lost.wait()
                except treering.RemoteError as error:
                    print(error.ranks, flush=True)
            else:
                bad.close()
                comm.allreduce(numpy.ones(1))
            comm.barrier()
        """, "2.0", "[1]")

    def test_long_timeouts(self):
        self.assert_prints("""
            import threading
            import numpy, treering
            comm = treering.init()
            go = comm.dup()
            for seconds in (float("inf"), 1e7, 1e300):
                if comm.rank == 0:
                    request = comm.allreduce(numpy.ones(1), stream=treering.Stream())
                    try:
                        request.wait(0)  # not before this one
                    except TimeoutError:
                        pass
                    timer = threading.Timer(0.1, lambda: go.send(numpy.ones(1), 1))
                    timer.start()
                    print(request.wait(seconds)[0], flush=True)
                    timer.join()
                else:
                    go.recv(numpy.ones(1), 0)
                    comm.allreduce(numpy.ones(1))
            comm.barrier()
        """, "2.0", "2.0", "2.0")

    def test_two_tasks_await_one_request(self):
        self.assert_prints("""
            import asyncio
            import numpy, treering
            comm = treering.init()
            go = comm.dup()

            async def result_of(request):
                return (await request)[0]

            async def main():
                request = comm.allreduce(numpy.ones(1), stream=treering.Stream())
                tasks = [asyncio.ensure_future(result_of(request)) for _ in range(3)]
                while not all(task._fut_waiter for task in tasks):
                    await asyncio.sleep(0)
                go.barrier()
                for result in await asyncio.wait_for(asyncio.gather(*tasks), 20):
                    print(result, flush=True)

            if comm.rank == 0:
                asyncio.run(main())
            else:
                go.barrier()
                comm.allreduce(numpy.ones(1))
            comm.barrier()
        """, "2.0", "2.0", "2.0")

    def test_an_interrupt_in_a_function(self):
        text = """
            import os, signal, threading
            import numpy, treering
            comm = treering.init()

            called = []

            def stop(a, b):
                if called:
                    return a
                called.append(1)
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                except KeyboardInterrupt:
                    threading.Event().wait(0.05)  # meanwhile the communicator is revoked
                    raise
                return a

            try:
                comm.reduce(numpy.ones(1 << 20), comm.operation(stop), root=0)
            except KeyboardInterrupt:
                assert called
                print("interrupted", flush=True)
            except treering.RemoteError:
                assert not called
        """
        code, printed, errors = run(text, "-n", "2")
        self.assertEqual(code, 0, errors)
        self.assertIn("interrupted", printed)


if __name__ == "__main__":
    unittest.main()
