// SPDX-License-Identifier: Apache-2.0
package shmaccum.bench;

import io.aeron.Aeron;
import io.aeron.CommonContext;
import io.aeron.Publication;
import io.aeron.Subscription;
import io.aeron.driver.MediaDriver;
import io.aeron.driver.ThreadingMode;
import io.aeron.logbuffer.FragmentHandler;
import java.io.File;
import java.time.Duration;
import org.agrona.IoUtil;
import org.agrona.concurrent.UnsafeBuffer;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.infra.BenchmarkParams;
import org.openjdk.jmh.infra.IterationParams;

/**
 * Aeron IPC, used as in its own sample EmbeddedIpcThroughput. The media driver runs in this JVM, and bounds checks are
 * off. Threads offer 100 bytes into a log buffer in /dev/shm. If there is one thread, its publication is exclusive. The
 * other thread polls.
 */
@State(Scope.Benchmark)
@Fork(
        value = 1,
        jvmArgsAppend = {
            "-Xms256m",
            "-Xmx256m",
            "-Dagrona.disable.bounds.checks=true",
            "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
            "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED"
        })
public class AeronOffer {
    private static final int STREAM = 1001;
    private static final int FRAGMENT_COUNT_MAX = 256;
    private static final Duration STANDSTILL = Duration.ofHours(1); // the JVM is stopped while others run

    private final UnsafeBuffer value = new UnsafeBuffer(new byte[Bytes.VALUE_SIZE]);
    private long sum;
    private final FragmentHandler reader = (buffer, offset, length, header) -> sum += buffer.getByte(offset);
    private final Beside taker = new Beside(this::poll);
    private Subscription subscription;
    private Publication publication;

    @Setup(Level.Trial)
    public void open(BenchmarkParams benchmark) {
        File directory = new File("/dev/shm/" + Gate.mark() + "-aeron-" + ProcessHandle.current().pid());
        MediaDriver driver = MediaDriver.launchEmbedded(new MediaDriver.Context()
                .aeronDirectoryName(directory.getPath())
                .threadingMode(ThreadingMode.SHARED)
                .clientLivenessTimeoutNs(STANDSTILL.toNanos())
                .publicationUnblockTimeoutNs(2 * STANDSTILL.toNanos())
                .performStorageChecks(false));
        Aeron aeron = Aeron.connect(new Aeron.Context()
                .aeronDirectoryName(driver.aeronDirectoryName())
                .driverTimeoutMs(STANDSTILL.toMillis()));
        subscription = aeron.addSubscription(CommonContext.IPC_CHANNEL, STREAM);
        publication = benchmark.getThreads() == 1
                ? aeron.addExclusivePublication(CommonContext.IPC_CHANNEL, STREAM)
                : aeron.addPublication(CommonContext.IPC_CHANNEL, STREAM);
        while (!publication.isConnected() || !subscription.isConnected()) {
            Thread.yield();
        }
        IoUtil.delete(directory, true); // all files are mapped; without names, a kill leaves no file
    }

    @Setup(Level.Iteration)
    public void begin(IterationParams iteration) {
        Gate.pass(iteration);
        taker.start();
    }

    @TearDown(Level.Iteration)
    public void end() throws InterruptedException {
        taker.stop();
    }

    private long poll() {
        if (subscription.poll(reader, FRAGMENT_COUNT_MAX) == 0) {
            Thread.yield();
        }
        return 0;
    }

    @Benchmark
    public void offer() {
        while (publication.offer(value, 0, Bytes.VALUE_SIZE) < 0) {
            if (publication.isClosed()) {
                throw new IllegalStateException("the media driver has given up");
            }
            Thread.yield();
        }
    }
}
