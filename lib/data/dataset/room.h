/* data/dataset - shards of samples and their index.
 *
 * Building, reading, joining and verifying an index; sets of Energon and MDS; parts of sets; downloads and the
 * cache of remote shards.
 *
 * Used by: vfm-curate, data/plan, data/loader
 * Calls: base, data/record, io, media/av
 * Read first: index.h, scan.h, dataset.h, shard_cache.h
 */
