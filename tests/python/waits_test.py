# SPDX-License-Identifier: Apache-2.0
"""Every wait ends within a second of Ctrl-C, lets other threads run, and tells who has failed."""
import os
import signal
import tempfile
import time
import unittest

from processes import Job, run

# Rank 1 takes no part; rank 0 is in a wait of its main thread when the signal comes.
WAITS = """
    import os, signal, sys, threading
    import numpy, treering
    what = sys.argv[1]
    x = numpy.ones(1000)

    if what == "init":
        if os.environ["TREERING_RANK"] == "1":
            threading.Event().wait()
    else:
        comm = treering.init()
        if comm.rank == 1:
            threading.Event().wait()
        stream = treering.Stream()
    waits = {
        "init": lambda: treering.init(),
        "allreduce": lambda: comm.allreduce(x),
        "recv": lambda: comm.recv(x, 1),
        "object": lambda: comm.broadcast_object(None, 1),
        "request": lambda: comm.allreduce(x, stream=stream).wait(),
        "stream": lambda: (comm.allreduce(x, stream=stream), stream.synchronize()),
        "close": lambda: (comm.allreduce(x, stream=stream), stream.close()),
        "finalize": lambda: (comm.allreduce(x, stream=stream), comm.finalize()),
        "split": lambda: comm.split(0),
        "shrink": lambda: comm.shrink([]),
        "group": lambda: group(),
        "persistent": lambda: persistent(),
        "exchange": lambda: treering.Exchange(comm, [((0,), (1,))], [], "int32"),
        "buffer": lambda: buffer(),
        "sparse": lambda: comm.sparse_allreduce(numpy.zeros(1, "int64"), numpy.zeros((1, 2)), capacity=3),
        "threads": lambda: treering.threads(2, lambda comm: comm.rank and comm.barrier() or comm.recv(x, 1)),
        "making": lambda: treering.threads(3, lambda comm: comm.rank and comm.split(0)),
    }

    def group():
        with treering.Group():
            comm.allreduce(x)
            comm.recv(x.copy(), 1)

    def persistent():
        with treering.Persistent() as step:
            comm.allreduce(x)
        step.start()

    def buffer():
        mean = treering.DoubleBuffer(comm, "float64")
        mean.exchange([x])
        mean.exchange([x])

    # Runs while the main thread waits, because the GIL is free; says so when that one stays at one place in the call.
    def watch():
        place, looks = None, 0
        while looks < 10:
            frame = sys._current_frames()[threading.main_thread().ident]
            before, place = place, (frame.f_code, frame.f_lasti)
            looks = looks + 1 if begun and place == before else 0
            threading.Event().wait(0.01)
        print(os.getpid(), flush=True)

    begun = []
    threading.Thread(target=watch).start()
    try:
        begun.append(True)
        waits[what]()
    except KeyboardInterrupt:
        print("interrupted", flush=True)
        sys.exit(5)
"""
WHAT = ("init", "allreduce", "recv", "object", "request", "stream", "close", "finalize", "split", "shrink", "group",
        "persistent", "exchange", "buffer", "sparse", "threads", "making")


class Interrupts(unittest.TestCase):
    def test_every_wait(self):
        for what in WHAT:
            with self.subTest(wait=what), Job(WAITS, "-n", "2", arguments=(what,)) as job:
                pid = int(job.line())
                begin = time.monotonic()
                os.kill(pid, signal.SIGINT)
                self.assertEqual(job.line(), "interrupted")
                self.assertLess(time.monotonic() - begin, 1)
                code, _, errors = job.finish()
                self.assertEqual(code, 5, errors)

    def test_again_and_with_handlers_set_later(self):
        text = """
            import os, signal, sys, threading
            import numpy, treering
            comm = treering.init()

            class Stop(Exception):
                pass

            def stop(number, frame):
                raise Stop

            for number, handler in ((signal.SIGINT, stop), (signal.SIGTERM, stop), (signal.SIGINT, stop)):
                work = comm.dup()
                work.allreduce(numpy.ones(1))
                if comm.rank == 1:
                    try:
                        work.barrier()
                    except treering.RemoteError as error:
                        assert error.ranks == [0], error
                else:
                    signal.signal(number, handler)
                    threading.Timer(0.05, os.kill, (os.getpid(), number)).start()
                    try:
                        work.recv(numpy.ones(1), 1)
                    except Stop:
                        print("stopped", flush=True)
                work.close()
            print(comm.allreduce(numpy.ones(1)))
        """
        code, printed, errors = run(text, "-n", "2")
        self.assertEqual((code, sorted(printed.split("\n"))), (0, ["", "[2.]", "[2.]", *["stopped"] * 3]), errors)

    def test_after_a_fork(self):
        text = """
            import os, signal, threading
            import numpy, treering
            comm = treering.init()
            comm.barrier()
            child = os.fork()
            if child == 0:
                made = treering.threads(2, lambda c: c.allreduce(numpy.ones(1)))
                own = treering.init_rank(1, treering.unique_id(), 0)
                own.barrier()
                os._exit(0 if made[1][0] == 2 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
            comm.barrier()
        """
        code, _, errors = run(text, "-n", "2")
        self.assertEqual(code, 0, errors)


class Failures(unittest.TestCase):
    def test_a_rank_that_leaves_is_named(self):
        text = """
            import os, signal, sys
            import numpy, treering
            comm = treering.init()
            comm.barrier()
            if comm.rank == 2:
                comm.close() if sys.argv[1] == "close" else comm.abort()
                sys.exit(0)
            for wait in (lambda: comm.allreduce(numpy.ones(1)), lambda: comm.allreduce(numpy.ones(1), stream=treering.Stream()).wait()):
                try:
                    wait()
                except treering.RemoteError as error:
                    assert isinstance(error, treering.Error)
                    print(error.ranks, flush=True)
            rest = comm.shrink([2])
            print(rest.allreduce(numpy.ones(1)), flush=True)
        """
        for how in ("close", "abort"):
            with self.subTest(how=how):
                code, printed, errors = run(text, "-n", "3", arguments=(how,))
                self.assertEqual((code, sorted(printed.split())), (0, ["[2.]"] * 2 + ["[2]"] * 4), errors)

    def test_killed(self):
        text = """
            import os, signal
            import numpy, treering
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's, once rank 2 is gone
            comm = treering.init()
            comm.barrier()
            if comm.rank == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                comm.allreduce(numpy.ones(1))
            except treering.RemoteError as error:
                assert error.ranks == [2], error
                while True:
                    try:
                        rest = comm.shrink(comm.lost())
                        break
                    except (treering.RemoteError, treering.InvalidUsage):
                        pass  # another rank knew of it earlier, or later
                assert comm.lost() == [2]
                print(rest.allreduce(numpy.ones(1)), flush=True)
        """
        code, printed, errors = run(text, "-n", "4")
        self.assertEqual((code, printed.split()), (137, ["[3.]"] * 3), errors)

    def test_closed_meanwhile(self):
        text = """
            import numpy, treering
            comm = treering.init()
            if comm.rank == 0:
                stream = treering.Stream()
                request = comm.allreduce(numpy.ones(3), stream=stream)
                comm.close()
                try:
                    request.wait()
                except treering.RemoteError as error:
                    print(error, flush=True)
                stream.close()
        """
        code, printed, errors = run(text, "-n", "2")
        self.assertEqual((code, printed), (0, "the communicator was closed while the call was under way\n"), errors)

    def test_timeout(self):
        text = """
            import os, sys
            import numpy, treering
            comm = treering.init(timeout=0.5)
            comm.barrier()
            if comm.rank == 0:
                try:
                    comm.recv(numpy.ones(1), 1)
                except TimeoutError as error:
                    assert isinstance(error, treering.TimeoutError)
                    print(error.ranks, flush=True)
                open(sys.argv[1], "w").close()
            while not os.path.exists(sys.argv[1]):
                pass
        """
        with tempfile.TemporaryDirectory() as directory:
            code, printed, errors = run(text, "-n", "2", arguments=(os.path.join(directory, "go"),))
        self.assertEqual((code, printed), (0, "[1]\n"), errors)

    def test_request_that_is_late(self):
        text = """
            import os, sys
            import numpy, treering
            comm = treering.init()
            if comm.rank == 0:
                request = comm.allreduce(numpy.ones(1), stream=treering.Stream())
                try:
                    request.wait(0.05)
                except treering.TimeoutError as error:
                    print(error, flush=True)
                assert not request.test()
                open(sys.argv[1], "w").close()
                print(request.wait(60), flush=True)
            else:
                while not os.path.exists(sys.argv[1]):
                    pass
                comm.allreduce(numpy.ones(1))
        """
        with tempfile.TemporaryDirectory() as directory:
            code, printed, errors = run(text, "-n", "2", arguments=(os.path.join(directory, "go"),))
        self.assertEqual(code, 0, errors)
        self.assertIn("has not ended within 0.05", printed)
        self.assertIn("[2.]", printed)


class Threads(unittest.TestCase):
    def test_an_interrupt_waits_for_the_ranks(self):
        text = """
            import os, signal, sys, threading
            import numpy, treering
            done = []

            def is_main_waiting():
                frame, names = sys._current_frames()[threading.main_thread().ident], set()
                while frame is not None:
                    names.add(frame.f_code.co_name)
                    frame = frame.f_back
                return "start" not in names and bool(names & {"join", "wait"})

            def work(comm):
                if comm.rank == 1:
                    while not is_main_waiting():
                        threading.Event().wait(0.01)
                    os.kill(os.getpid(), signal.SIGINT)
                try:
                    comm.recv(numpy.ones(1), comm.rank ^ 1)
                except treering.RemoteError:
                    threading.Event().wait(0 if comm.rank else 0.3)
                    done.append(comm.rank)

            try:
                treering.threads(2, work)
            except KeyboardInterrupt:
                print(sorted(done), flush=True)
        """
        code, printed, errors = run(text, "-n", "1")
        self.assertEqual((code, printed), (0, "[0, 1]\n"), errors)

    def test_results_and_failures(self):
        import numpy
        import treering
        self.assertEqual(treering.threads(3, lambda comm: comm.allreduce(numpy.ones(1))[0]), [3.0] * 3)

        def fails(comm):
            if comm.rank == 1:
                raise LookupError("as the test wants it")
            comm.barrier()

        with self.assertRaisesRegex(LookupError, "as the test wants it"):
            treering.threads(3, fails)
        with self.assertRaisesRegex(treering.InvalidArgument, "the number of ranks is 0"):
            treering.threads(0, fails)


if __name__ == "__main__":
    unittest.main()
