/* data/loader - reads the packs of a plan from shards, ahead in threads.  Ranks of a node that need the same pack read
 * it once, into shared memory.
 *
 * Used by: train/run, vfm-bench
 * Calls: base, data/dataset, data/plan, data/record, io, spec/layout, spec/model
 * Read first: loader.h
 */
