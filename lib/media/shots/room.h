/* media/shots - cuts and dissolves.
 *
 * The detector of shots on small pictures, and cutting a video at frames.
 *
 * Used by: vfm-curate
 * Calls: base, media/av
 * Read first: shots.h, scene.h, cut.h
 */
