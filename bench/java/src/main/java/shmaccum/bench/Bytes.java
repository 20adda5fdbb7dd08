// SPDX-License-Identifier: Apache-2.0
package shmaccum.bench;

/** What is sent. */
final class Bytes {
    static final int VALUE_SIZE = 100;

    private Bytes() {}
}
