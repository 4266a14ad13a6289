/* data/eval - metrics of generated clips.
 *
 * Pairs of clips, the Frechet distance of feature sets.
 *
 * Used by: vfm-bench
 * Calls: base, data/record, io, media/av, media/score
 * Read first: frechet.h, pairs.h
 */
