#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Replicas of a model as threads of one process, with NumPy alone; compared with a single replica.

    python train.py [REPLICAS]

Ends with status 0 when the weights agree to rounding.
"""
import sys

import numpy
import treering

STEPS, BATCH, FEATURES = 200, 48, 20


def batches():
    random = numpy.random.default_rng(2)
    direction = random.standard_normal(FEATURES)
    for _ in range(STEPS):
        inputs = random.standard_normal((BATCH, FEATURES)).astype("float32")
        yield inputs, (inputs @ direction > 0).astype("float32")


def train(average, part, parts):
    """Logistic regression; `average` takes the replica's gradient and gives that of all."""
    weights = numpy.zeros(FEATURES, "float32")
    for inputs, labels in batches():
        inputs, labels = inputs[part::parts], labels[part::parts]
        predicted = 1 / (1 + numpy.exp(-inputs @ weights))
        weights -= 0.5 * average(inputs.T @ (predicted - labels) / len(labels))
    return weights


def main():
    replicas = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    if replicas < 1 or BATCH % replicas:
        sys.exit(f"{replicas} replicas: give a number that divides {BATCH}")
    trained = treering.threads(replicas, lambda comm: train(lambda gradient: comm.allreduce(gradient, op="avg"), comm.rank, comm.size))
    alone = train(lambda gradient: gradient, 0, 1)
    difference = max(float(abs(weights - alone).max()) for weights in trained)
    inputs, labels = next(batches())
    right = ((inputs @ trained[0] > 0) == labels).mean()
    print(f"{replicas} replicas: {right:.0%} of a batch right, largest difference to one replica {difference:.1e}")
    return 0 if difference < 1e-4 else 1


if __name__ == "__main__":
    sys.exit(main())
