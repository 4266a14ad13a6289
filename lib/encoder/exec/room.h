/* encoder/exec - outside models as child processes: the protocol of vfm-exec(7) (requests, payload files, faults,
 * restarts), and the requests: captions, features, latents, shots.
 *
 * Used by: encoder/encode, vfm-curate
 * Calls: base, data/record, io, media/shots, spec/model
 * Read first: exec.h, hello.h, outside.h
 */
