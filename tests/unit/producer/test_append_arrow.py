# SPDX-License-Identifier: Apache-2.0
"""Arrow batches and tables of pyarrow: every column type, sliced, nullable and chunked."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shmaccum.arena import Arena
from shmaccum.exceptions import (
    BufferExhaustedError,
    InvalidArgumentError,
    RecordTooLargeError,
    UnknownPartitionError,
)
from shmaccum.producer import Producer
from shmaccum.producer.deliveries import Deliveries
from tests.support.accumulator import Accumulator
from tests.support.arenas import Drainer
from tests.unit.producer.many import PARTITION_COUNTS, Sent, check_places, deliver

NOW_MS = 1_600_000_000_000

HEADER = pa.struct([("key", pa.string()), ("value", pa.binary())])
BYTES_TYPES = [pa.binary(), pa.large_binary(), pa.binary_view()]
TEXT_TYPES = [pa.string(), pa.large_string(), pa.string_view()]
TYPES: dict[str, list[pa.DataType]] = {
    "value": BYTES_TYPES,
    "key": [*TEXT_TYPES, *BYTES_TYPES],
    "topic": [*TEXT_TYPES, pa.dictionary(pa.int8(), pa.string()), pa.dictionary(pa.uint32(), pa.large_string())],
    "partition": [pa.int32(), pa.int64()],
    "timestamp": [pa.timestamp("ms"), pa.timestamp("us", "UTC"), pa.timestamp("ns", "Europe/Berlin"), pa.int64()],
    "headers": [
        pa.list_(HEADER),
        pa.large_list(HEADER),
        pa.list_(pa.struct([("value", pa.large_binary()), ("key", pa.string_view())])),
    ],
}
UNITS = {"ms": 1, "us": 1000, "ns": 10**6}


@pytest.fixture
def producer(arena: Arena, sender: Accumulator) -> Iterator[Producer]:
    for topic, count in PARTITION_COUNTS.items():
        arena.native.set_topic_partition_count(topic, count)
    producer = Producer(arena, max_block_ms=0)
    yield producer
    sender.abort()
    producer.close(0)


def column(name: str, cells: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """Return an Arrow array of a column's cells."""
    if pa.types.is_timestamp(kind):
        cells = [None if cell is None else cell * UNITS[kind.unit] for cell in cells]
        return pa.array(cells, pa.int64()).cast(kind)
    if pa.types.is_dictionary(kind):
        return pa.array(cells, kind.value_type).dictionary_encode().cast(kind)
    return pa.array(cells, kind)


def batch_of(rows: Sequence[dict[str, Any]], kinds: dict[str, pa.DataType]) -> pa.RecordBatch:
    return pa.record_batch({name: column(name, [row[name] for row in rows], kind) for name, kind in kinds.items()})


# --- against the reference

ROW = st.fixed_dictionaries(
    {
        "value": st.none() | st.binary(max_size=40),
        "key": st.none() | st.sampled_from(["a", "b", "c", "", "a key of more than twelve bytes", "ü"]),
        "topic": st.sampled_from(sorted(PARTITION_COUNTS)),
        "partition": st.none() | st.just(0),
        "timestamp": st.none() | st.integers(0, NOW_MS),
        "headers": st.none()
        | st.lists(
            st.fixed_dictionaries({"key": st.text(max_size=14), "value": st.none() | st.binary(max_size=14)}),
            max_size=3,
        ),
    }
)


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[dict[str, Any]], pa.RecordBatch]:
    """Draw rows, and a batch of them that is a slice of a larger one."""
    rows = draw(st.lists(ROW, max_size=150))
    optional = draw(st.sets(st.sampled_from(["key", "partition", "timestamp", "headers"])))
    names = draw(st.permutations(["value", "topic", *sorted(optional)]))
    batch = batch_of(rows, {name: draw(st.sampled_from(TYPES[name])) for name in names})
    start = draw(st.integers(0, len(rows)))
    count = draw(st.integers(0, len(rows) - start))
    kept = [{name: row[name] for name in names} for row in rows[start : start + count]]
    return kept, batch.slice(start, count)


def now_of(sent: Deliveries, rows: Sequence[dict[str, Any]]) -> int:
    return next((sent[i].timestamp_ms for i, row in enumerate(rows) if row.get("timestamp") is None), 0)


@given(example=batches())
@settings(max_examples=150)
def test_any_batch_arrives_where_it_belongs(
    sender: Accumulator, producer: Producer, example: tuple[list[dict[str, Any]], pa.RecordBatch]
) -> None:
    rows, batch = example
    sent = producer.append_arrow(batch)
    assert len(sent) == len(rows)
    check_places(deliver(sender), rows, now_of(sent, rows))


@given(rows=st.lists(ROW, min_size=1, max_size=150), cuts=st.lists(st.integers(0, 150), max_size=5))
@settings(max_examples=40)
def test_a_table_of_several_batches_is_one_call(
    sender: Accumulator, producer: Producer, rows: list[dict[str, Any]], cuts: list[int]
) -> None:
    kinds = {name: kinds[0] for name, kinds in TYPES.items()}
    edges = sorted({0, len(rows), *(min(cut, len(rows)) for cut in cuts)})
    pieces = [batch_of(rows[start:end], kinds) for start, end in itertools.pairwise(edges)]
    sent = producer.append_arrow(pa.Table.from_batches(pieces))
    assert len(sent) == len(rows)
    check_places(deliver(sender), rows, now_of(sent, rows))


def test_the_order_of_each_key_is_kept(sender: Accumulator, producer: Producer) -> None:
    rows = [{"topic": "flights", "key": f"key-{n % 13}", "value": b"%d" % n, "timestamp": n} for n in range(900)]
    batch = batch_of(rows, {name: TYPES[name][0] for name in ("topic", "key", "value", "timestamp")})
    for start in range(0, 900, 150):
        producer.append_arrow(batch.slice(start, 150))
    check_places(deliver(sender), rows, 0)


# --- kinds of sources


@pytest.mark.parametrize(
    "wrap",
    [
        lambda batch: batch,
        lambda batch: batch.to_struct_array(),
        lambda batch: pa.Table.from_batches([batch]),
        lambda batch: pa.RecordBatchReader.from_batches(batch.schema, [batch]),
        lambda batch: pa.RecordBatchReader.from_batches(batch.schema, (batch for _ in range(1))),
        lambda batch: pa.chunked_array([batch.to_struct_array()]),
    ],
    ids=["batch", "struct array", "table", "reader", "reader of a generator", "chunked array"],
)
def test_whatever_speaks_arrow_will_do(sender: Accumulator, producer: Producer, wrap: Any) -> None:
    source = wrap(pa.record_batch({"value": [b"a", b"b"]}))
    assert len(producer.append_arrow(source, topic="planes")) == 2
    assert [record.value for record in deliver(sender)["planes", 0]] == [b"a", b"b"]


def test_the_argument_topic_overrides_the_column(sender: Accumulator, producer: Producer) -> None:
    batch = pa.record_batch({"value": [b"a", b"b"], "topic": ["flights", None]})
    producer.append_arrow(batch, topic="planes")
    assert set(deliver(sender)) == {("planes", 0)}


def test_empty_batches_and_tables(producer: Producer) -> None:
    schema = pa.schema([(name, kinds[0]) for name, kinds in TYPES.items()])
    assert len(producer.append_arrow(schema.empty_table())) == 0
    assert len(producer.append_arrow(pa.RecordBatch.from_pylist([], schema))) == 0
    assert len(producer.append_arrow(pa.record_batch({"value": pa.array([], pa.binary())}))) == 0
    assert len(producer.append_arrow(pa.table({"value": pa.chunked_array([], pa.binary())}))) == 0


def test_strings_are_values_too(sender: Accumulator, producer: Producer) -> None:
    for kind in [*TEXT_TYPES, pa.dictionary(pa.int16(), pa.string())]:
        producer.append_arrow(pa.record_batch({"value": column("value", ["ü", None, "x" * 20], kind)}), topic="planes")
        assert [record.value for record in deliver(sender)["planes", 0]] == ["ü".encode(), None, b"x" * 20]


def test_a_column_of_nulls_is_no_column(sender: Accumulator, producer: Producer) -> None:
    nulls = pa.nulls(2)
    names = ["key", "partition", "timestamp", "headers", "topic"]
    sent = producer.append_arrow(pa.record_batch({"value": nulls} | dict.fromkeys(names, nulls)), topic="planes")
    now_ms = sent[0].timestamp_ms
    assert deliver(sender)["planes", 0] == [Sent(now_ms, None, None, ())] * 2


def test_seconds(sender: Accumulator, producer: Producer) -> None:
    stamps = pa.array([1_500_000_000, None], pa.timestamp("s"))
    sent = producer.append_arrow(pa.record_batch({"value": [b"a", b"b"], "timestamp": stamps}), topic="planes")
    assert sent[0].timestamp_ms == 1_500_000_000_000
    assert sent[1].timestamp_ms > 1_600_000_000_000
    deliver(sender)


# --- rejected batches


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"key": [b"k"]}, "the batch has no column 'value': a record needs one"),
        ({"value": [b"v"], "valu": [1]}, "the batch has a column 'valu': allowed are value, key, topic, partition"),
        ({"value": [1]}, "column 'value' has the Arrow type int64: it must be binary or string"),
        ({"value": [[b"v"]]}, "column 'value' has the Arrow type list"),
        ({"value": [b"v"], "key": [1.5]}, "column 'key' has the Arrow type float64"),
        ({"value": [b"v"], "topic": [b"t"]}, "column 'topic' has the Arrow type binary: it must be string"),
        (
            {"value": [b"v"], "partition": ["1"]},
            "column 'partition' has the Arrow type string: it must be int32 or int64",
        ),
        ({"value": [b"v"], "timestamp": ["now"]}, "column 'timestamp' has the Arrow type string"),
        ({"value": [b"v"], "headers": [[("h", b"x")]]}, "column 'headers' has the Arrow type"),
        ({"value": [b"v"], "headers": [{"h": b"x"}]}, "column 'headers' has the Arrow type struct"),
        ({"value": [b"v"], "partition": [-1]}, "column 'partition' is -1 in row 0: it must lie between 0 and"),
        ({"value": [b"v"], "partition": [2**31]}, "column 'partition' is 2147483648 in row 0"),
        (
            {"value": [b"v"], "partition": [7]},
            "topic 'flights' has no partition 7: its partition count is 7, and it did not",
        ),
        ({"value": [b"v"], "timestamp": [-1]}, "column 'timestamp' is -1 in row 0"),
        ({"value": [b"v"], "timestamp": [2**62]}, "column 'timestamp' is 4611686018427387904 in row 0"),
        (
            {"value": [b"v"], "headers": pa.array([[{"key": None, "value": b"x"}]], pa.list_(HEADER))},
            "row 0 has a header whose key is null",
        ),
        ({"value": [b"v"], "headers": pa.array([[None]], pa.list_(HEADER))}, "row 0 has a header that is null"),
    ],
)
@pytest.mark.parametrize("wrap", [pa.record_batch, pa.table], ids=["batch", "table"])
def test_a_wrong_column(producer: Producer, columns: dict[str, Any], sentence: str, wrap: Any) -> None:
    arrays = {
        name: cells if isinstance(cells, pa.Array) else pa.array([["h"]]) if name == "headers" else pa.array(cells)
        for name, cells in columns.items()
    }
    if columns.get("headers") == [{"h": b"x"}]:
        arrays["headers"] = pa.array([{"h": b"x"}])
    with pytest.raises((InvalidArgumentError, UnknownPartitionError), match=sentence) as caught:
        producer.append_arrow(wrap(arrays), topic="flights")
    assert len(caught.value.appended) == 0  # type: ignore[attr-defined]


def test_two_columns_of_one_name(producer: Producer) -> None:
    batch = pa.record_batch([pa.array([b"v"]), pa.array([b"w"])], names=["value", "value"])
    with pytest.raises(InvalidArgumentError, match="two columns 'value'"):
        producer.append_arrow(batch, topic="flights")


@pytest.mark.parametrize("columns", [{"value": [b"v"]}, {"value": [b"v"], "topic": pa.array([None], pa.string())}])
def test_a_row_without_a_topic(producer: Producer, columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgumentError, match="row 0 has no topic: fill the column 'topic'"):
        producer.append_arrow(pa.record_batch(columns))


def test_a_topic_that_is_none(producer: Producer) -> None:
    with pytest.raises(InvalidArgumentError, match="'a b' is not a topic name"):
        producer.append_arrow(pa.record_batch({"value": [b"v"], "topic": ["a b"]}))


def test_a_struct_array_with_a_null_row(producer: Producer) -> None:
    rows = pa.array([{"value": b"v"}, None], pa.struct([("value", pa.binary())]))
    with pytest.raises(InvalidArgumentError, match="row 1 of the batch is null as a whole"):
        producer.append_arrow(rows, topic="flights")


@pytest.mark.parametrize("source", [5, [b"v"], {"value": [b"v"]}, None])
def test_what_is_no_arrow_data(producer: Producer, source: Any) -> None:
    with pytest.raises(TypeError, match=r"append_arrow\(\) takes a record batch, a table or another object"):
        producer.append_arrow(source, topic="flights")


def test_an_array_that_is_no_batch(producer: Producer) -> None:
    with pytest.raises(InvalidArgumentError, match="the Arrow data is of type int64: it must be a record batch"):
        producer.append_arrow(pa.array([1]), topic="flights")


class Pretender:
    """An object whose methods return wrong values."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def __arrow_c_array__(self, requested_schema: object = None) -> Any:
        return self.answer


def test_capsules_of_something_else(producer: Producer) -> None:
    schema, array = pa.record_batch({"value": [b"v"]}).__arrow_c_array__()
    for answer, kind in [(5, TypeError), ((schema,), TypeError), ((array, schema), ValueError), ((1, 2), ValueError)]:
        with pytest.raises(kind):
            producer.append_arrow(Pretender(answer), topic="flights")


def test_a_stream_that_fails_midway(sender: Accumulator, producer: Producer) -> None:
    batch = pa.record_batch({"value": [b"v"] * 5})

    def generate() -> Iterator[pa.RecordBatch]:
        yield batch
        raise RuntimeError("the source is gone")

    reader = pa.RecordBatchReader.from_batches(batch.schema, generate())
    with pytest.raises(OSError, match="the source is gone") as caught:
        producer.append_arrow(reader, topic="planes")
    assert len(caught.value.appended) == 5  # type: ignore[attr-defined]
    assert len(deliver(sender)["planes", 0]) == 5


def test_a_record_too_large_in_the_middle(sender: Accumulator, producer: Producer) -> None:
    values = [b"%d" % number for number in range(150)]
    values[100] = b"x" * 40_000
    with pytest.raises(RecordTooLargeError, match="oversized_max_bytes") as caught:
        producer.append_arrow(pa.record_batch({"value": values}), topic="planes")
    assert caught.value.record_index == len(caught.value.appended) == 100  # type: ignore[attr-defined]
    assert [record.value for record in deliver(sender)["planes", 0]] == values[:100]


BAD_ROWS: list[tuple[dict[str, Any], str]] = [
    ({"partition": -5}, "column 'partition' is -5 in row 400"),
    ({"partition": 7}, "topic 'flights' has no partition 7: its partition count is 7, and it did not"),
    ({"timestamp": -1}, "column 'timestamp' is -1 in row 400"),
    ({"topic": None}, "row 400 has no topic"),
    ({"topic": "a b"}, "'a b' is not a topic name"),
    ({"headers": [{"key": None, "value": b"x"}]}, "row 400 has a header whose key is null"),
    ({"headers": [None]}, "row 400 has a header that is null"),
    ({"value": b"x" * 40_000}, "oversized_max_bytes"),
]


@pytest.mark.parametrize(("bad", "sentence"), BAD_ROWS)
def test_a_bad_row_leaves_those_before_it(
    sender: Accumulator, producer: Producer, bad: dict[str, Any], sentence: str
) -> None:
    good = {"topic": "flights", "value": b"v", "key": None, "partition": None, "timestamp": NOW_MS, "headers": None}
    rows = [good | {"value": b"%d" % n, "key": f"key-{n % 20}"} for n in range(500)]
    rows[400] |= bad
    for later, (other, _) in enumerate(BAD_ROWS, start=401):
        rows[later] |= other
    batch = batch_of(rows, {name: kinds[0] for name, kinds in TYPES.items()} | {"timestamp": pa.int64()})
    with pytest.raises((InvalidArgumentError, RecordTooLargeError, UnknownPartitionError), match=sentence) as caught:
        producer.append_arrow(batch)
    assert caught.value.record_index == len(caught.value.appended) == 400  # type: ignore[attr-defined]
    check_places(deliver(sender), rows[:400], 0)


def test_exhaustion_in_the_middle_reports_what_was_appended(sender: Accumulator, producer: Producer) -> None:
    rows = [{"topic": "flights", "key": str(n % 11), "value": b"%5d" % n + b"x" * 400} for n in range(1000)]
    batch = batch_of(rows, {name: TYPES[name][0] for name in ("topic", "key", "value")})
    with pytest.raises(BufferExhaustedError) as caught:
        producer.append_arrow(batch)
    sent: Deliveries = caught.value.appended  # type: ignore[attr-defined]
    assert 50 < len(sent) < 200
    check_places(deliver(sender), [rows[row] for row in sent.rows], sent[0].timestamp_ms)


def test_other_threads_run_during_a_long_call(arena: Arena) -> None:
    """The drainer's thread runs only because the call releases the GIL."""
    arena.native.set_topic_partition_count("flights", 7)
    batch = pa.record_batch({"value": [b"x" * 100] * 20_000})
    with Drainer(arena) as drainer, Producer(arena) as producer:
        assert len(producer.append_arrow(batch, topic="flights")) == 20_000
    assert len(drainer.values()) == 20_000


def test_serializers_do_not_apply_and_partitioners_and_interceptors_are_refused(
    arena: Arena, sender: Accumulator
) -> None:
    arena.native.set_topic_partition_count("planes", 1)
    batch = pa.record_batch({"value": [b"v"]})
    with Producer(arena, value_serializer="json") as producer:
        producer.append_arrow(batch, topic="planes")
        assert [record.value for record in deliver(sender)["planes", 0]] == [b"v"]
    cannot = "which interceptors and user-defined partitioners cannot see"
    with Producer(arena, partitioner="round_robin") as producer, pytest.raises(InvalidArgumentError, match=cannot):
        producer.append_arrow(batch, topic="planes")
