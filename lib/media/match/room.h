/* media/match - hashes and comparisons that find one clip twice.
 *
 * Perceptual hashes, and whether two clips show the same.
 *
 * Used by: curate/dedup
 * Calls: base, media/av, media/shots
 * Read first: clip_hash.h
 */
