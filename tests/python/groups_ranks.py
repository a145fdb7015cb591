# SPDX-License-Identifier: Apache-2.0
"""Groups and persistent operations where something goes wrong: nothing is left open, and nothing is lost."""
import ctypes
import functools
import signal
import threading
import unittest

import numpy
import ranks
from ranks import same

import treering


def fails(a, b):
    raise LookupError("as the test wants it")


class Groups(unittest.TestCase):
    def sum_of_ones(self):
        same(ranks.comm.allreduce(numpy.ones(3)), numpy.full(3, float(ranks.comm.size)))

    def test_entered_twice(self):
        group = treering.Group()
        with self.assertRaisesRegex(treering.InvalidUsage, "it has been entered already"):
            with group:
                with group:
                    pass
        self.sum_of_ones()
        with group:
            got = ranks.comm.allreduce(numpy.ones(3))
        same(got, numpy.full(3, float(ranks.comm.size)))
        with self.assertRaisesRegex(treering.InvalidUsage, "a thread that has not entered it"):
            group.__exit__(None, None, None)

    def test_a_signal_before_the_end(self):
        """Python comes to look at the signal when the group is being left, for C functions alone run before that."""
        group = treering.Group()
        group.__enter__()
        ranks.comm.allreduce(numpy.ones(3))
        steps = (functools.partial(ctypes.CDLL(None)["raise"], int(signal.SIGINT)),
                 functools.partial(group.__exit__, None, None, None))
        with self.assertRaises(KeyboardInterrupt):
            list(map(functools.partial.__call__, steps))
        self.sum_of_ones()

    def test_close(self):
        work = ranks.comm.dup()
        with treering.Group():
            got = work.allreduce(numpy.ones(3))
            with self.assertRaisesRegex(treering.InvalidUsage, "the open group has calls on this communicator"):
                work.close()
        same(got, numpy.full(3, float(ranks.comm.size)))
        ranks.comm.barrier()
        work.close()
        self.assertFalse(work.is_open)

    def test_a_dropped_communicator(self):
        singles = [ranks.comm.split(ranks.comm.rank)]
        with treering.Group():
            got = singles.pop().allreduce(numpy.ones(3))
        same(got, numpy.ones(3))

    def test_objects(self):
        comm, n = ranks.comm, ranks.comm.size
        calls = (lambda: comm.broadcast_object(1), lambda: comm.allgather_objects(1), lambda: comm.gather_objects(1),
                 lambda: comm.scatter_objects([1] * n), lambda: comm.alltoall_objects([1] * n),
                 lambda: comm.send_object(1, 0), lambda: comm.recv_object(0))
        with treering.Group():
            for call in calls:
                with self.assertRaisesRegex(treering.InvalidUsage, "_objects?: objects cannot travel inside of a group"):
                    call()
        self.sum_of_ones()

    def test_what_a_function_raises(self):
        """Not all ranks combine something; where the root does, it raises."""
        comm = ranks.comm
        op = comm.operation(fails)

        def in_a_group():
            with treering.Group():
                comm.reduce(numpy.ones(4), op, root=0)

        def in_a_group_on_a_stream():
            with treering.Group():
                request = comm.reduce(numpy.ones(4), op, root=0, stream=stream)
            request.wait()

        def persistent(stream=None):
            with treering.Persistent() as step:
                comm.reduce(numpy.ones(4), op, root=0, stream=stream)
            request = step.start()
            if stream is not None:
                request.wait()

        stream = treering.Stream()
        for call in (in_a_group, in_a_group_on_a_stream, persistent, lambda: persistent(stream)):
            raised = False
            try:
                call()
            except LookupError:
                raised = True
            self.assertEqual(any(comm.allgather_objects(raised)), comm.size > 1)

    def test_a_stream_that_others_add_to(self):
        """The streams' thread needs the GIL for the function while this one waits."""
        comm, n = ranks.comm, ranks.comm.size
        op = comm.operation(lambda a, b: a + b)
        stream = treering.Stream()

        def add():
            for _ in range(100):
                same(comm.allreduce(numpy.ones(100), op, stream=stream).wait(), numpy.full(100, float(n)))

        adding = threading.Thread(target=add)
        adding.start()
        while adding.is_alive():
            stream.synchronize()
        adding.join()
        stream.close()


class Persistents(unittest.TestCase):
    def test_an_exception_keeps_no_calls(self):
        comm = ranks.comm
        step = treering.Persistent()
        with self.assertRaisesRegex(KeyError, "as the test wants it"):
            with step:
                comm.allreduce(numpy.ones(3))
                raise KeyError("as the test wants it")
        with self.assertRaisesRegex(treering.InvalidUsage, "no calls are kept"):
            step.start()
        with step:
            got = comm.allreduce(numpy.ones(3))
        step.start()
        same(got, numpy.full(3, float(comm.size)))

    def test_several_streams_keep_no_calls(self):
        comm = ranks.comm
        step = treering.Persistent()
        with self.assertRaisesRegex(treering.InvalidArgument, "its calls name several streams"):
            with step:
                comm.allreduce(numpy.ones(3), stream=treering.Stream())
                comm.allreduce(numpy.ones(3))
        with self.assertRaisesRegex(treering.InvalidUsage, "no calls are kept"):
            step.start()


if __name__ == "__main__":
    ranks.main()
