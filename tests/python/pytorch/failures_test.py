# SPDX-License-Identifier: Apache-2.0
"""Ranks that die, leave, or never come: the others get an error that names them, and nothing hangs."""
import signal
import unittest

from jobs import Job

# Rank 1 dies while the others are in a call, or about to be.
KILLED = """
    begin()
    x = torch.ones(1000)
    dist.all_reduce(x)
    {before}
    dist.barrier()
    say("ready")
    if rank == 1:
        wait_for_ever()
    say(error_of(lambda: {call}))
    dist.destroy_process_group()
    say("destroyed")
"""


class Deaths(unittest.TestCase):
    def killed(self, call, before="pass", names="rank 1"):
        with Job(KILLED.format(call=call, before=before), 3) as job:
            for rank in range(3):
                self.assertEqual(job.line(rank), "ready", job.errors[rank].name)
            job.ranks[1].send_signal(signal.SIGKILL)
            for rank in (0, 2):
                said = job.line(rank)
                self.assertIn(names, said)
                self.assertRegex(said, "died|ended")
                code, rest, errors = job.finish(rank)
                self.assertEqual((code, rest), (0, "destroyed\n"), errors)

    def test_in_a_call(self):
        self.killed("dist.all_reduce(x)")

    def test_in_an_asynchronous_call(self):
        self.killed("dist.all_reduce(x, async_op=True).wait()")

    def test_in_a_barrier(self):
        self.killed("dist.barrier()")

    def test_in_a_future(self):
        self.killed("dist.all_reduce(x, async_op=True).get_future().wait()")

    def test_in_another_group(self):
        self.killed("dist.all_reduce(x, group=group)", "group = dist.new_group()")

    def test_in_a_receive(self):
        used = "dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, (rank + 2) % 3), dist.P2POp(dist.isend, x, (rank + 1) % 3)])"
        self.killed("dist.recv(torch.ones(1000), 1)")
        # Rank 2 has a lane from rank 1 that is open already.
        self.killed("dist.recv(torch.ones(1000), 1)", f"for work in {used}: work.wait()")

    def test_in_a_monitored_barrier(self):
        self.killed("dist.monitored_barrier(timeout=datetime.timedelta(seconds=2))")


class Ends(unittest.TestCase):
    def test_exit_by_an_exception(self):
        """With work under way, which the other rank never joins."""
        text = """
            begin()
            dist.barrier()
            x = torch.ones(1000)
            work = dist.all_reduce(x, async_op=True) if rank == 0 else None
            receive = dist.irecv(torch.ones(1), 1 - rank)
            if rank == 0:
                raise KeyError("as the test wants it")
            say(error_of(lambda: dist.barrier()))
            say(error_of(receive.wait))
        """
        with Job(text, 2) as job:
            code, _, errors = job.finish(0)
            self.assertEqual(code, 1, errors)
            self.assertIn("as the test wants it", errors)
            self.assertIn("rank 0", job.line(1))
            self.assertIn("recv from rank 0", job.line(1))
            self.assertEqual(job.finish(1)[0], 0)

    def test_destroy_with_work_under_way(self):
        text = """
            begin()
            dist.barrier()
            if rank == 0:
                work = dist.all_reduce(torch.ones(1000), async_op=True)
                receive = dist.irecv(torch.ones(1), 1)
                dist.destroy_process_group()
                say(error_of(work.wait))
                say(error_of(receive.wait))
            else:
                wait_for_test()
                say(error_of(lambda: dist.barrier()))
        """
        with Job(text, 2) as job:
            self.assertIn("all_reduce: the group was destroyed", job.line(0))
            self.assertIn("recv from rank 1: the group was destroyed", job.line(0))
            job.go_on(1)
            self.assertIn("rank 0", job.line(1))
            for rank in range(2):
                code, _, errors = job.finish(rank)
                self.assertEqual(code, 0, errors)

    def test_abort_during_a_call(self):
        """By another thread, of calls that no other rank joins."""
        text = """
            begin()
            dist.barrier()
            if rank == 0:
                group = dist.group.WORLD
                number = group._get_backend(torch.device("cpu"))._get_sequence_number_for_group
                before = number()
                work = dist.all_reduce(torch.ones(1000), async_op=True)
                call = threading.Thread(target=lambda: say(error_of(lambda: dist.all_reduce(torch.ones(1000)))))
                call.start()
                while number() < before + 2:
                    pass
                dist.distributed_c10d._abort_process_group()
                call.join()
                say(error_of(work.wait))
            else:
                wait_for_test()
                say(error_of(dist.barrier))
        """
        with Job(text, 2) as job:
            for _ in range(2):
                self.assertRegex(job.line(0), "all_reduce: .*abort")
            job.go_on(1)
            self.assertIn("rank 0", job.line(1))
            for rank in range(2):
                code, _, errors = job.finish(rank)
                self.assertEqual(code, 0, errors)

    def test_a_group_after_another(self):
        """With the same store, whose keys the first one has cleared away."""
        text = """
            for _ in range(3):
                begin()
                x = torch.ones(10)
                dist.all_reduce(x)
                dist.destroy_process_group()
            say(x[0].item())
        """
        with Job(text, 2) as job:
            for rank in range(2):
                code, rest, errors = job.finish(rank)
                self.assertEqual((code, rest), (0, "2.0\n"), errors)

    def test_a_message_of_one_who_has_left(self):
        text = """
            begin()
            for number in range(2):
                x = torch.full((10,), 3.0)
                if rank == 0:
                    dist.send(x, 1)
                else:
                    x = torch.zeros(10)
                    if number == 1:
                        wait_for_test()
                    dist.recv(x, 0)
            say(x[0].item())
            dist.destroy_process_group()
        """
        with Job(text, 2) as job:
            self.assertEqual(job.finish(0)[:2], (0, "3.0\n"))
            job.go_on(1)
            code, rest, errors = job.finish(1)
            self.assertEqual((code, rest), (0, "3.0\n"), errors)

    def test_forked_child(self):
        """It ends as any process does, with the parent's group and lanes in its memory, and harms nothing."""
        text = """
            begin()
            def exchange():
                x = torch.ones(10)
                dist.all_reduce(x, async_op=True).wait()
                works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, x, 1 - rank), dist.P2POp(dist.isend, x, 1 - rank)])
                for work in works:
                    work.wait()
                return x[0].item()
            exchange()
            child = os.fork()
            if child == 0:
                sys.exit(7)
            say(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), exchange())
            dist.destroy_process_group()
        """
        with Job(text, 2) as job:
            for rank in range(2):
                code, rest, errors = job.finish(rank)
                self.assertEqual((code, rest), (0, "7 2.0\n"), errors)

    def test_without_destroy(self):
        with Job("begin()\ndist.barrier()\nwork = dist.all_reduce(torch.ones(10), async_op=True)\nwork.wait()\n", 2) as job:
            for rank in range(2):
                code, _, errors = job.finish(rank)
                self.assertEqual((code, errors), (0, ""))


class Timeouts(unittest.TestCase):
    def test_of_the_group(self):
        text = """
            begin(2)
            dist.barrier()
            if rank == 1:
                wait_for_ever()
            say(error_of(lambda: dist.all_reduce(torch.ones(10))))
        """
        with Job(text, 2) as job:
            said = job.line(0)
            self.assertRegex(said, "rank 1")
            self.assertRegex(said, "2 s|2000 ms|2.0 s")

    def test_of_a_call(self):
        text = """
            begin()
            dist.barrier()
            if rank == 1:
                wait_for_ever()
            say(error_of(lambda: dist.barrier(timeout=datetime.timedelta(milliseconds=300))))
            say(error_of(dist.barrier))
        """
        with Job(text, 2) as job:
            self.assertIn("barrier: has not ended after 300 ms", job.line(0))
            self.assertNotEqual(job.line(0), "no error")

    def test_that_is_set_later(self):
        text = """
            begin()
            set_timeout = getattr(dist, "set_timeout", None) or dist.distributed_c10d._set_pg_timeout
            try:
                set_timeout(datetime.timedelta(hours=9), dist.group.WORLD)
            except ValueError as error:
                say(error)
            set_timeout(datetime.timedelta(milliseconds=400), dist.group.WORLD)
            dist.barrier()
            if rank == 1:
                wait_for_ever()
            work = dist.all_reduce(torch.ones(10), async_op=True)
            say(error_of(work.wait))
            say(error_of(lambda: dist.all_reduce(torch.ones(10))))
        """
        with Job(text, 2) as job:
            self.assertRegex(job.line(0), "32400000 ms is longer than [0-9]+ ms, with which the group was made")
            self.assertIn("all_reduce: has not ended after 400 ms, the timeout of this call; it goes on", job.line(0))
            self.assertIn("all_reduce: has not ended after 400 ms, the timeout of this call; the group", job.line(0))

    def test_of_a_wait(self):
        """The operation goes on, and ends when the other rank comes."""
        text = """
            begin()
            dist.barrier()
            if rank == 1:
                sys.stdin.readline()
                dist.recv(torch.ones(1), 0)
            x = torch.ones(10)
            work = dist.all_reduce(x, async_op=True)
            if rank == 0:
                say(error_of(lambda: work.wait(datetime.timedelta(milliseconds=200))))
                dist.send(torch.ones(1), 1)
            work.wait()
            say(x[0].item())
        """
        with Job(text, 2) as job:
            self.assertIn("all_reduce: has not ended after 200 ms, the timeout of wait()", job.line(0))
            self.assertEqual([job.line(0), job.line(1)], ["2.0", "2.0"])

    def test_monitored_barrier(self):
        """It names all who are missing; the group stays usable."""
        text = """
            begin()
            limit = datetime.timedelta(seconds=1)
            dist.monitored_barrier(timeout=limit)
            if rank in (1, 3):
                dist.recv(torch.ones(1), 0)
            said = error_of(lambda: dist.monitored_barrier(timeout=limit))
            if rank == 0:
                for late in (1, 3):
                    dist.send(torch.ones(1), late)
            dist.monitored_barrier()
            x = torch.ones(1)
            dist.all_reduce(x)
            say(said, x.item())
        """
        with Job(text, 4) as job:
            for rank in range(4):
                self.assertEqual(job.line(rank), "monitored_barrier: ranks 1, 3 have not come within 1000 ms 4.0",
                                 job.errors[rank].name)


if __name__ == "__main__":
    unittest.main()
