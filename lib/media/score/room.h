/* media/score - scores of a clip: motion, text, artifacts, changes over time; PSNR and SSIM of two clips.
 *
 * Used by: curate/report, data/eval, media/pass, vfm-curate
 * Calls: base, media/av
 * Read first: score.h, quality.h
 */
