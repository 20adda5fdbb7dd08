/* SPDX-License-Identifier: Apache-2.0
 *
 * The party of a convoy that writes down how far lanes are.
 */
#ifndef SHIPPING_KEEPER_H
#define SHIPPING_KEEPER_H

#include "sender/lane.h"

struct ship_keeper {
    /* Writes down what is due of these lanes (lane_due), and moves their windows (lane_keep). False when that failed,
     * and a lane is where it was then. */
    bool (*keep)(struct ship_keeper *keeper, struct ship_lane *lanes, uint32_t lane_count);
    bool is_over; /* the convoy ends: nothing more can be written down */
};

#endif
