/* media/shots - shots: detects cuts and dissolves on small pictures, and cuts a video at frames.
 *
 * Used by: media/pass, vfm-curate
 * Calls: base, media/av
 * Read first: shots.h, scene.h, cut.h
 */
