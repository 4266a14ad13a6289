/* base - code that every room may use.
 *
 * Errors as values, the log, memory, time, numbers (of texts, little-endian, not finite), threads, Philox and
 * permutations, lists with ranges, UTF-8, copies of functions for instruction sets, statistics of samples.  Knows no
 * format and no device.
 *
 * Used by: everyone
 * Calls: nothing
 * Read first: err.h, mem.h, log.h
 */
