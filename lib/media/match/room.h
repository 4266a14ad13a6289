/* media/match - perceptual hashes and comparison of clips: decides whether two clips show the same.
 *
 * Used by: curate/dedup, media/pass, vfm-curate
 * Calls: base, media/av, media/shots
 * Read first: clip_hash.h
 */
