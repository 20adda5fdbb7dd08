// SPDX-License-Identifier: Apache-2.0
package shmaccum.bench;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import org.openjdk.jmh.infra.IterationParams;
import org.openjdk.jmh.runner.IterationType;

/**
 * Holds each measured iteration until whoever measures asks for it with a byte, so that the rounds of a JVM and those
 * of all other contenders take turns. Warm-up is not held.
 */
final class Gate {
    private static InputStream requests;

    private Gate() {}

    /** What the names of all that the question makes in shared memory begin with (bench/harness/belongings.py). */
    static String mark() {
        return System.getenv().getOrDefault("SHMACCUM_BENCH_MARK", "shmaccum-bench");
    }

    static void pass(IterationParams iteration) {
        if (iteration.getType() == IterationType.MEASUREMENT && read() < 0) {
            System.exit(0); // nobody asks any more
        }
    }

    private static synchronized int read() {
        try {
            if (requests == null) {
                requests = new FileInputStream(System.getProperty("shmaccum.gate"));
            }
            return requests.read();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
