# SPDX-License-Identifier: Apache-2.0
"""Ranks of one process, each in a thread."""
import threading


def run_threads(comms, function):
    """function(comm) in a thread for each communicator; their results. The first failure ends the others."""
    results, failures = [None] * len(comms), []
    lock = threading.Lock()
    ended = [threading.Event() for _ in comms]

    def revoke_all():
        for comm in comms:
            if comm.is_open:
                try:
                    comm.revoke()
                except Exception:  # noqa: BLE001 - closed by its own thread meanwhile
                    pass

    def run(rank):
        try:
            results[rank] = function(comms[rank])
        except BaseException as failure:  # noqa: BLE001 - raised again by the calling thread
            with lock:
                failures.append(failure)
            revoke_all()
        finally:
            ended[rank].set()

    def wait_for_all():
        # Events first: a Thread.join() of Python 3.11 that a signal interrupts takes the thread for one that has ended.
        for thread, event in zip(threads, ended):
            if thread.ident is not None:
                event.wait()
                thread.join()

    threads = [threading.Thread(target=run, args=(rank,), name=f"treering rank {rank}") for rank in range(len(comms))]
    try:
        for thread in threads:
            thread.start()
        wait_for_all()
    except BaseException:  # Ctrl-C: the ranks are in calls, which end by this
        revoke_all()
        wait_for_all()
        raise
    finally:
        for comm in comms:
            comm.close()
    if failures:
        raise failures[0]
    return results
