// SPDX-License-Identifier: Apache-2.0
package shmaccum.bench;

/** The value of each record. */
final class Bytes {
    static final int VALUE_SIZE = 100;

    private Bytes() {}
}
