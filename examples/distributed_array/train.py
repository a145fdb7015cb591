#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A locally connected network that is split by space, with NumPy alone; compared with a single process.

    python -m treering.run -n 3 train.py

Each rank has some columns of every sample and the weights there. A position's output depends on its neighbours, too: a rank declares
the columns that it has and those that it needs, and treering.Exchange moves what lies in both.

    columns       0 1 2 3 4 5 6 7 8
    rank 1 has          3 4 5
    rank 1 needs      2 3 4 5 6

(Dryden et al., Improving strong-scaling of CNN training by exploiting finer-grained parallelism, IPDPS 2019.) Ends with status 0 when
the weights agree to rounding.
"""
import sys

import numpy
import treering

STEPS, BATCH, WIDTH, RATE = 60, 32, 48, 0.2


class Columns:
    """Columns [begin, end) of arrays (BATCH, WIDTH, ...), and the exchange that adds one more at each side."""

    def __init__(self, comm, begin, end):
        self.comm, self.begin, self.end = comm, begin, end
        self.first, self.last = max(begin - 1, 0), min(end + 1, WIDTH)
        self._moves = {}

    def _move(self, more):
        if more not in self._moves:
            def box(begin, end):
                return (0, begin) + (0,) * len(more), (BATCH, end) + more
            self._moves[more] = treering.Exchange(self.comm, held=[box(self.begin, self.end)], needed=[box(self.first, self.last)],
                                                  dtype="float32")
        return self._moves[more]

    def with_neighbours(self, own):
        """Zeros beyond the ends of the whole array."""
        have = own if self.comm is None else self._move(own.shape[2:]).start([numpy.ascontiguousarray(own)])[0]
        sides = (self.first - (self.begin - 1), self.end + 1 - self.last)
        return numpy.pad(have, [(0, 0), sides] + [(0, 0)] * (own.ndim - 2))

    def sum(self, partial):
        return partial if self.comm is None else self.comm.allreduce(partial)


class Layer:
    """output[i] = tanh(sum over k of weights[i, k] input[i + k - 1]): weights of its own at each position."""

    def __init__(self, columns, weights):
        self.columns, self.weights = columns, weights[columns.begin:columns.end].copy()

    def forward(self, own):
        self.inputs = self.columns.with_neighbours(own)
        width = own.shape[1]
        self.outputs = numpy.tanh(sum(self.inputs[:, k:k + width] * self.weights[:, k] for k in range(3)))
        return self.outputs

    def backward(self, gradient):
        """Updates the weights; the gradient of the input."""
        gradient = gradient * (1 - self.outputs**2)
        width = gradient.shape[1]
        parts = self.columns.with_neighbours(gradient[:, :, None] * self.weights)
        step = numpy.stack([(gradient * self.inputs[:, k:k + width]).sum(0) for k in range(3)], 1)
        self.weights -= RATE * step
        return sum(parts[:, 2 - k:2 - k + width, k] for k in range(3))


def weights_of(seed, *shape):
    return numpy.random.default_rng(seed).standard_normal(shape).astype("float32")


def train(columns):
    """The weights of the rank's columns."""
    own = slice(columns.begin, columns.end)
    first, second = (Layer(columns, 0.5 * weights_of(seed, WIDTH, 3)) for seed in (1, 2))
    readout = (0.2 * weights_of(3, WIDTH))[own].copy()
    places, random = weights_of(4, WIDTH), numpy.random.default_rng(5)
    for _ in range(STEPS):
        samples = random.standard_normal((BATCH, WIDTH)).astype("float32")
        wanted = numpy.tanh(samples * places).mean(1)
        hidden = second.forward(first.forward(samples[:, own]))
        error = columns.sum(hidden @ readout) - wanted
        gradient = (2 / BATCH) * error[:, None]
        behind = gradient * readout
        readout -= RATE * (gradient * hidden).sum(0)
        first.backward(second.backward(behind))
    return (error**2).mean(), numpy.column_stack([first.weights, second.weights, readout])


def main():
    comm = treering.init()
    if comm.size > WIDTH:
        sys.exit(f"{comm.size} ranks: give at most {WIDTH}")
    bounds = [WIDTH * rank // comm.size for rank in (comm.rank, comm.rank + 1)]
    loss, weights = train(Columns(comm, *bounds))
    _, alone = train(Columns(None, 0, WIDTH))
    difference = comm.allreduce(numpy.array([abs(weights - alone[slice(*bounds)]).max()]), op="max")[0]
    if comm.rank == 0:
        print(f"{comm.size} ranks: loss {loss:.4f}, largest difference to one process {difference:.1e}")
    return 0 if difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
