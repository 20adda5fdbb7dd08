// SPDX-License-Identifier: Apache-2.0
package shmaccum.bench;

import com.lmax.disruptor.BatchEventProcessor;
import com.lmax.disruptor.BatchEventProcessorBuilder;
import com.lmax.disruptor.EventHandler;
import com.lmax.disruptor.RingBuffer;
import com.lmax.disruptor.YieldingWaitStrategy;
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
 * Copies 100 bytes into an entry of a ring buffer, from which another thread of the process reads them. The ring buffer
 * has 64 Ki entries and the wait strategy of the library's throughput tests. Nothing is encoded, and there is no
 * checksum.
 */
@State(Scope.Benchmark)
@Fork(value = 1, jvmArgsAppend = {"-Xms512m", "-Xmx512m", "-XX:+AlwaysPreTouch"})
public class DisruptorPublish {
    private static final int RING_SIZE = 64 * 1024;

    /** An entry of the ring buffer. */
    static final class Entry {
        final byte[] bytes = new byte[Bytes.VALUE_SIZE];
    }

    /** The consumer. */
    private static final class Reader implements EventHandler<Entry> {
        private long sum;

        @Override
        public void onEvent(Entry entry, long sequence, boolean isEndOfBatch) {
            sum += entry.bytes[0];
        }
    }

    private final byte[] value = new byte[Bytes.VALUE_SIZE];
    private final Reader reader = new Reader();
    private RingBuffer<Entry> ring;
    private BatchEventProcessor<Entry> processor;
    private Thread beside;

    @Setup(Level.Trial)
    public void open(BenchmarkParams benchmark) {
        ring = benchmark.getThreads() == 1
                ? RingBuffer.createSingleProducer(Entry::new, RING_SIZE, new YieldingWaitStrategy())
                : RingBuffer.createMultiProducer(Entry::new, RING_SIZE, new YieldingWaitStrategy());
        processor = new BatchEventProcessorBuilder().build(ring, ring.newBarrier(), reader);
        ring.addGatingSequences(processor.getSequence());
    }

    @Setup(Level.Iteration)
    public void begin(IterationParams iteration) {
        Gate.pass(iteration);
        beside = new Thread(processor, "beside");
        beside.start();
    }

    @TearDown(Level.Iteration)
    public void end() throws InterruptedException {
        while (processor.getSequence().get() < ring.getCursor()) {
            Thread.yield();
        }
        processor.halt();
        beside.join();
    }

    @Benchmark
    public void publish() {
        long sequence = ring.next();
        System.arraycopy(value, 0, ring.get(sequence).bytes, 0, Bytes.VALUE_SIZE);
        ring.publish(sequence);
    }
}
