# SPDX-License-Identifier: Apache-2.0
"""Sends and receives in all orders, with tags, and in batches."""
import unittest

import members
import torch
import torch.distributed as dist
from members import MOVED, SIZES, rank, same, size, values


def after():
    return (rank() + 1) % size()


def before():
    return (rank() - 1) % size()


class PointToPoint(unittest.TestCase):
    def test_blocking(self):
        if size() == 1:
            return  # torch.distributed refuses send() to the rank itself, and takes isend()
        for dtype in MOVED:
            for count in SIZES:
                with self.subTest(dtype=dtype, count=count):
                    x, got = values(rank(), count, dtype), torch.empty(count, dtype=dtype)
                    if rank() % 2 == 0:
                        dist.send(x, after())
                        self.assertEqual(dist.recv(got, before()), before())
                    else:
                        dist.recv(got, before())
                        dist.send(x, after())
                    same(got, values(before(), count, dtype))

    def test_all_receive_first(self):
        """No send of a rank waits for its receives, in whatever order they were posted."""
        for count in SIZES:
            got = {peer: torch.empty(count) for peer in range(size())}
            receives = [dist.irecv(got[peer], peer) for peer in range(size())]
            sends = [dist.isend(values(rank(), count, torch.float32, peer), peer) for peer in range(size())]
            for work in sends + receives:
                work.wait()
            for peer in range(size()):
                same(got[peer], values(peer, count, torch.float32, rank()))

    def test_batch(self):
        for count in SIZES:
            x, got = values(rank(), count, torch.float32), torch.empty(count)
            works = dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, before()), dist.P2POp(dist.isend, x, after())])
            for work in works:
                work.wait()
            same(got, values(before(), count, torch.float32))

    def test_tags(self):
        """The receives are posted in another order than the sends: the tags tell which is which."""
        tags = [3, 1, 7, 1, 0]
        sends = [dist.isend(torch.full((k + 1,), float(10 * rank() + k)), after(), tag=tag) for k, tag in enumerate(tags)]
        order = [4, 1, 0, 3, 2]  # of the two with tag 1 in the order of the sends
        got = {}
        for k in order:
            got[k] = torch.empty(k + 1)
            dist.recv(got[k], before(), tag=tags[k])
        for work in sends:
            work.wait()
        for k, tensor in got.items():
            same(tensor, torch.full((k + 1,), float(10 * before() + k)))

    def test_sizes_that_differ(self):
        works = [dist.isend(torch.ones(3), after(), tag=11), dist.isend(torch.ones(2), after(), tag=12)]
        with self.assertRaisesRegex(dist.DistBackendError, f"recv from rank {before()}: it sent 12 bytes; the tensor has 8"):
            dist.irecv(torch.empty(2), before(), tag=11).wait()
        got = torch.zeros(2)
        dist.irecv(got, before(), tag=12).wait()
        same(got, torch.ones(2))
        for work in works:
            work.wait()

    def test_beside_collectives(self):
        got, x = torch.empty(1000), values(rank(), 1000, torch.float32)
        receive = dist.irecv(got, before())
        dist.barrier()
        send = dist.isend(x, after())
        total = torch.ones(3)
        dist.all_reduce(total)
        send.wait()
        receive.wait()
        same(got, values(before(), 1000, torch.float32))
        same(total, torch.full((3,), float(size())))

    def test_refused(self):
        with self.assertRaisesRegex(ValueError, "send: tensor has shape .*a contiguous tensor is wanted"):
            dist.isend(torch.ones(4, 4)[:, ::2], after())
        with self.assertRaisesRegex(RuntimeError, "does not support recvAnysource"):
            dist.irecv(torch.ones(1))


if __name__ == "__main__":
    members.main()
