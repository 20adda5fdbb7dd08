// SPDX-License-Identifier: Apache-2.0
package shmaccum.bench;

import java.io.FileInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import org.openjdk.jmh.infra.IterationParams;
import org.openjdk.jmh.runner.IterationType;

/**
 * Blocks each measured iteration until the harness sends a byte, so that a JVM and all other contenders run in turn.
 * The warm-up is not blocked.
 */
final class Gate {
    private static InputStream requests;

    private Gate() {}

    /** Returns the prefix of all names that the question creates in shared memory (bench/harness/cleanup.py). */
    static String mark() {
        return System.getenv().getOrDefault("SHMACCUM_BENCH_MARK", "shmaccum-bench");
    }

    static void pass(IterationParams iteration) {
        if (iteration.getType() == IterationType.MEASUREMENT && read() < 0) {
            System.exit(0); // the harness has closed the gate
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
