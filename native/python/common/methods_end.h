/* SPDX-License-Identifier: Apache-2.0
 *
 * The end of a list of methods (python/common/methods.h).
 */
#undef TYPE
#undef SELF
#undef STATE
#undef ENTER
#undef LEAVE
#undef METHODS_PART
