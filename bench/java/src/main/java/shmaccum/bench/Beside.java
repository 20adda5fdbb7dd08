// SPDX-License-Identifier: Apache-2.0
package shmaccum.bench;

import java.util.concurrent.locks.LockSupport;
import java.util.function.LongSupplier;

/** A thread that consumes the records of the benchmark's threads during an iteration, and sleeps between iterations. */
final class Beside {
    private final LongSupplier turn;
    private volatile boolean isWanted;
    private volatile Thread thread;

    /** @param turn consumes all records and returns the number of ns to sleep, which `wake` can end earlier. */
    Beside(LongSupplier turn) {
        this.turn = turn;
    }

    void start() {
        isWanted = true;
        thread = new Thread(this::run, "beside");
        thread.start();
    }

    void wake() {
        LockSupport.unpark(thread);
    }

    void stop() throws InterruptedException {
        isWanted = false;
        wake();
        thread.join();
    }

    private void run() {
        while (isWanted) {
            long idleNs = turn.getAsLong();
            if (idleNs > 0) {
                LockSupport.parkNanos(idleNs);
            }
        }
    }
}
