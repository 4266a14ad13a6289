/* base - code that every room may use.
 *
 * - errors as values, the log, the clock
 * - memory, threads, shared memory, copies of functions for instruction sets
 * - parsed numbers, little-endian numbers, NaN and infinities, UTF-8, lists with ranges
 * - Philox, permutations, statistics
 *
 * Knows no format and no device.
 *
 * Used by: everyone
 * Calls: nothing
 * Read first: err.h, mem.h, log.h
 */
