/* media/pass - one decode of a video for all that look at its frames: facts, shots, and scores, hashes and files of the
 * clips.
 *
 * Used by: vfm-curate
 * Calls: base, media/av, media/match, media/score, media/shots
 * Read first: pass.h
 */
