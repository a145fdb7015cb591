# SPDX-License-Identifier: Apache-2.0
"""Ranks of one process, each in a thread."""
import threading


def run_threads(comms, function):
    """function(comm) in a thread for each communicator; their results. The first failure ends the others."""
    results, failures = [None] * len(comms), []
    lock = threading.Lock()

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

    threads = [threading.Thread(target=run, args=(rank,), name=f"treering rank {rank}") for rank in range(len(comms))]
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    except BaseException:  # Ctrl-C: the ranks are in calls, which end by this
        revoke_all()
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise
    finally:
        for comm in comms:
            comm.close()
    if failures:
        raise failures[0]
    return results
