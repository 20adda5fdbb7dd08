// SPDX-License-Identifier: Apache-2.0
package shmaccum.bench;

import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.clients.MetadataSnapshot;
import org.apache.kafka.clients.producer.internals.BufferPool;
import org.apache.kafka.clients.producer.internals.ProducerBatch;
import org.apache.kafka.clients.producer.internals.RecordAccumulator;
import org.apache.kafka.clients.producer.internals.RecordAccumulator.ReadyCheckResult;
import org.apache.kafka.clients.producer.internals.RecordAccumulator.RecordAppendResult;
import org.apache.kafka.common.Cluster;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.compress.Compression;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.record.Record;
import org.apache.kafka.common.requests.MetadataResponse.PartitionMetadata;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.openjdk.jmh.annotations.Benchmark;
import org.openjdk.jmh.annotations.Fork;
import org.openjdk.jmh.annotations.Level;
import org.openjdk.jmh.annotations.Scope;
import org.openjdk.jmh.annotations.Setup;
import org.openjdk.jmh.annotations.State;
import org.openjdk.jmh.annotations.TearDown;
import org.openjdk.jmh.infra.IterationParams;

/**
 * The work of KafkaProducer.send after it has found the partition: RecordAccumulator.append, and a wake-up of the
 * sender if a batch is full or new. Kafka's defaults are used (batches of 16 KiB in 32 MiB, linger 5 ms, no
 * compression). The other thread drains batches, which closes them and computes their checksums. It then completes them
 * and frees their buffers, as Kafka's Sender does with a broker that responds at once.
 */
@State(Scope.Benchmark)
@Fork(value = 1, jvmArgsAppend = {"-Xms512m", "-Xmx512m", "-XX:+AlwaysPreTouch"})
public class AccumulatorAppend {
    private static final String TOPIC = "topic";
    private static final int PARTITION = 0;
    private static final int BATCH_SIZE = 16384;
    private static final long BUFFER_MEMORY = 32L << 20;
    private static final int REQUEST_SIZE_MAX = 1 << 20;
    private static final int LINGER_MS = 5;
    private static final long RETRY_BACKOFF_MS = 100;
    private static final long RETRY_BACKOFF_MAX_MS = 1000;
    private static final int DELIVERY_TIMEOUT_MS = 120_000;
    private static final long BLOCK_MS_MAX = 60_000;
    private static final String METRICS = "producer-metrics";

    private final byte[] value = "v".repeat(Bytes.VALUE_SIZE).getBytes(StandardCharsets.US_ASCII);
    private final MetadataSnapshot metadata = oneLeader();
    private final Cluster cluster = metadata.cluster();
    private final RecordAccumulator accumulator = open();
    private final Beside sender = new Beside(this::drain);

    private static MetadataSnapshot oneLeader() {
        Node node = new Node(1, "localhost", 9092);
        PartitionMetadata partition = new PartitionMetadata(
                Errors.NONE, new TopicPartition(TOPIC, PARTITION), Optional.of(1), Optional.of(0), List.of(1),
                List.of(1), List.of());
        return new MetadataSnapshot(
                "bench", Map.of(1, node), List.of(partition), Set.of(), Set.of(), Set.of(), node,
                Map.of(TOPIC, Uuid.randomUuid()));
    }

    private static RecordAccumulator open() {
        Metrics metrics = new Metrics();
        BufferPool pool = new BufferPool(BUFFER_MEMORY, BATCH_SIZE, metrics, Time.SYSTEM, METRICS);
        return new RecordAccumulator(
                new LogContext(), BATCH_SIZE, Compression.NONE, LINGER_MS, RETRY_BACKOFF_MS, RETRY_BACKOFF_MAX_MS,
                DELIVERY_TIMEOUT_MS, metrics, METRICS, Time.SYSTEM, null, pool);
    }

    @Setup(Level.Iteration)
    public void begin(IterationParams iteration) {
        Gate.pass(iteration);
        sender.start();
    }

    @TearDown(Level.Iteration)
    public void end() throws InterruptedException {
        sender.stop();
    }

    private long drain() {
        long nowMs = Time.SYSTEM.milliseconds();
        ReadyCheckResult ready = accumulator.ready(metadata, nowMs);
        if (ready.readyNodes.isEmpty()) {
            return TimeUnit.MILLISECONDS.toNanos(ready.nextReadyCheckDelayMs);
        }
        accumulator.drain(metadata, ready.readyNodes, REQUEST_SIZE_MAX, nowMs).values().forEach(this::complete);
        return 0;
    }

    private void complete(List<ProducerBatch> batches) {
        for (ProducerBatch batch : batches) {
            batch.complete(0, -1);
            accumulator.deallocate(batch);
        }
    }

    @Benchmark
    public Object append() throws InterruptedException {
        long nowMs = Time.SYSTEM.milliseconds();
        RecordAppendResult result = accumulator.append(
                TOPIC, PARTITION, nowMs, null, value, Record.EMPTY_HEADERS, null, BLOCK_MS_MAX, nowMs, cluster);
        if (result.batchIsFull || result.newBatchCreated) {
            sender.wake();
        }
        return result;
    }
}
