# SPDX-License-Identifier: Apache-2.0
"""The seed of a test that draws numbers, as support/seed.h has it for C++."""
import os
import random
import sys


def given_seed():
    """That of TREERING_TEST_SEED, or None."""
    text = os.environ.get("TREERING_TEST_SEED")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 19:
        sys.exit(f"TREERING_TEST_SEED is '{text}': give a whole number of at most 19 digits")
    return int(text)


def test_seed():
    """From the environment, or a new one. Prints it."""
    seed = given_seed()
    if seed is None:
        seed = random.SystemRandom().getrandbits(32)
    print(f"seed {seed} (TREERING_TEST_SEED repeats it)", flush=True)
    return seed
