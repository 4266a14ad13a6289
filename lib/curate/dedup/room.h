/* curate/dedup - duplicates among millions of clips: groups by perceptual hash and by features, their index, records as
 * text, search by vectors.
 *
 * Used by: vfm-curate
 * Calls: base, data/record, io, media/match
 * Read first: dedup.h, clip_groups.h, semantic.h, search.h
 */
