// SPDX-License-Identifier: Apache-2.0

// Command porcupine checks histories of partitions and of groups for linearizability.
//
// The histories are rows of 64-bit words on standard input. A kind is a number:
//
//	COUNT kind CLIENT CALL RETURN POSITION CODE ...     COUNT codes
//
//	partition    a history begins
//	group        a history begins; the codes are those of the partition at the end
//	append
//	read
//	whole        a read of the whole partition
//	assign       a member got the partition and begins at POSITION
//	commit
//
// A partition is a list of codes. An append adds its codes at the end of the list, at POSITION, all at once; the
// codes of one process ascend. A read returns what the list has at POSITION.
// A group has one committed position. A member begins there, reads on without a gap, and commits where it is.
package main

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

const (
	seatCount  = 64   // of producers
	numberBits = 32   // bits for the number in a code; the others name the process that sent it
	seatBits   = 48   // bits for number and incarnation in a code; the others are the seat
	segmentMin = 1000 // the minimum number of operations between two cuts
	timeout    = 2 * time.Minute
	headSize   = 6 // words before the codes
)

const (
	kindPartition = iota
	kindGroup
	kindAppend
	kindRead
	kindWhole
	kindAssign
	kindCommit
)

type operation struct {
	kind     int64
	client   int
	call     int64
	end      int64
	position int64
	codes    []int64
}

type history struct {
	isGroup    bool
	log        []int64
	operations []operation
}

// node is one record of a partition; the list is immutable, so the states of all branches share it.
type node struct {
	code   int64
	before *node
}

type partitionState struct {
	length int64
	hash   uint64
	next   [seatCount]int64 // each seat's last code plus one
	tail   *node
}

func appended(state partitionState, input operation) (bool, partitionState) {
	if input.position != state.length {
		return false, state
	}
	for _, code := range input.codes {
		seat := code >> seatBits % seatCount
		next := state.next[seat]
		if next>>numberBits == code>>numberBits && next > code {
			return false, state
		}
		state.next[seat] = code + 1
		state.tail = &node{code, state.tail}
		state.length++
		state.hash = (state.hash ^ uint64(code)) * 0x9E3779B97F4A7C15
		state.hash ^= state.hash >> 29
	}
	return true, state
}

func isRead(state partitionState, input operation) bool {
	end := input.position + int64(len(input.codes))
	if end > state.length {
		return false
	}
	record := state.tail
	for position := state.length; position > end; position-- {
		record = record.before
	}
	for index := len(input.codes) - 1; index >= 0; index-- {
		if record.code != input.codes[index] {
			return false
		}
		record = record.before
	}
	return true
}

func partitionModel(initial partitionState) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return initial },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			from, call := state.(partitionState), input.(operation)
			if call.kind == kindAppend {
				return stepped(appended(from, call))
			}
			isWhole := call.kind != kindWhole || int64(len(call.codes)) == from.length
			return isWhole && isRead(from, call), from
		},
		Equal: func(one, other interface{}) bool {
			first, second := one.(partitionState), other.(partitionState)
			return first.length == second.length && first.hash == second.hash && first.next == second.next
		},
		Hash: func(state interface{}) uint64 { return state.(partitionState).hash },
	}
}

func stepped(isPossible bool, state partitionState) (bool, interface{}) { return isPossible, state }

type groupState struct {
	committed int64
	positions map[int]int64 // of the members that own the partition, or believe that they own it
}

func (state groupState) with(client int, position int64) groupState {
	positions := make(map[int]int64, len(state.positions)+1)
	for key, value := range state.positions {
		positions[key] = value
	}
	positions[client] = position
	return groupState{state.committed, positions}
}

func groupModel(log []int64) porcupine.Model {
	return porcupine.Model{
		Init: func() interface{} { return groupState{} },
		Step: func(state, input, _ interface{}) (bool, interface{}) {
			from, call := state.(groupState), input.(operation)
			position, isMember := from.positions[call.client]
			switch call.kind {
			case kindAssign:
				return call.position == from.committed, from.with(call.client, call.position)
			case kindCommit:
				return isMember && call.position == position, groupState{call.position, from.positions}
			}
			isPossible := isMember && call.position == position && isPart(log, call)
			return isPossible, from.with(call.client, call.position+int64(len(call.codes)))
		},
		Equal: func(one, other interface{}) bool {
			first, second := one.(groupState), other.(groupState)
			if first.committed != second.committed || len(first.positions) != len(second.positions) {
				return false
			}
			for client, position := range first.positions {
				if found, isThere := second.positions[client]; !isThere || found != position {
					return false
				}
			}
			return true
		},
	}
}

func isPart(log []int64, call operation) bool {
	if call.position < 0 || call.position+int64(len(call.codes)) > int64(len(log)) {
		return false
	}
	for index, code := range call.codes {
		if log[call.position+int64(index)] != code {
			return false
		}
	}
	return true
}

// figures has the figures of one history.
type figures struct {
	operations, segments, open int
	result                     porcupine.CheckResult
}

func check(one history) figures {
	sort.SliceStable(one.operations, func(i, j int) bool { return one.operations[i].call < one.operations[j].call })
	found := figures{operations: len(one.operations), open: mostOpen(one.operations), result: porcupine.Ok}
	state := partitionState{}
	for _, segment := range segments(one) {
		found.segments++
		model := groupModel(one.log)
		if !one.isGroup {
			model = partitionModel(state)
		}
		input := make([]porcupine.Operation, len(segment))
		for index, call := range segment {
			input[index] = porcupine.Operation{ClientId: call.client, Input: call, Call: call.call, Return: call.end}
		}
		if found.result = porcupine.CheckOperationsTimeout(model, input, timeout); found.result != porcupine.Ok {
			break
		}
		state = after(state, segment)
	}
	return found
}

// segments cuts the history of a partition at moments without an open call. By then, all earlier appends have happened in
// the order of their positions, so only one state is possible. A group may have several, so its history is not cut.
func segments(one history) [][]operation {
	var found [][]operation
	begin, latest := 0, int64(0)
	for index, call := range one.operations {
		if !one.isGroup && index-begin >= segmentMin && call.call > latest {
			found = append(found, one.operations[begin:index])
			begin = index
		}
		latest = max(latest, call.end)
	}
	return append(found, one.operations[begin:])
}

func after(state partitionState, segment []operation) partitionState {
	var appends []operation
	for _, call := range segment {
		if call.kind == kindAppend {
			appends = append(appends, call)
		}
	}
	sort.Slice(appends, func(i, j int) bool { return appends[i].position < appends[j].position })
	for _, call := range appends {
		_, state = appended(state, call)
	}
	return state
}

// mostOpen is the largest number of calls that were open at once. The operations are in the order of their calls.
func mostOpen(operations []operation) int {
	ends := make([]int64, len(operations))
	for index, call := range operations {
		ends[index] = call.end
	}
	sort.Slice(ends, func(i, j int) bool { return ends[i] < ends[j] })
	most, returned := 0, 0
	for index, call := range operations {
		for ends[returned] < call.call {
			returned++
		}
		most = max(most, index+1-returned)
	}
	return most
}

// words reads `count` words of the input. It returns false at the end.
func words(input io.Reader, count int64) ([]int64, bool) {
	found := make([]int64, count)
	failure := binary.Read(input, binary.LittleEndian, found)
	if failure != nil && failure != io.EOF {
		panic(failure)
	}
	return found, failure == nil
}

// histories calls `take` with each history of the input.
func histories(take func(history)) {
	input := bufio.NewReaderSize(os.Stdin, 1<<20)
	var one history
	isFirst := true
	for {
		row, isThere := words(input, headSize)
		if !isThere {
			break
		}
		codes, isThere := words(input, row[0])
		if row[0] > 0 && !isThere {
			panic("a row has too few codes")
		}
		if kind := row[1]; kind == kindPartition || kind == kindGroup {
			if !isFirst {
				take(one)
			}
			one, isFirst = history{isGroup: kind == kindGroup, log: codes}, false
			continue
		}
		one.operations = append(one.operations, operation{row[1], int(row[2]), row[3], row[4], row[5], codes})
	}
	if !isFirst {
		take(one)
	}
}

func main() {
	total, isSound := figures{}, true
	count := 0
	histories(func(one history) {
		found := check(one)
		total.operations += found.operations
		total.segments += found.segments
		total.open = max(total.open, found.open)
		if found.result != porcupine.Ok {
			isSound = false
			fmt.Printf("%s %d\n", found.result, count)
		}
		count++
	})
	fmt.Printf("checked %d %d %d %d\n", count, total.operations, total.segments, total.open)
	if !isSound {
		os.Exit(1)
	}
}
