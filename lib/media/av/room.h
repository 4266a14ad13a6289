/* media/av - FFmpeg.
 *
 * Probe, decode, encode, copy; conversion to progressive SDR; sound; exact times; downloads.  Its libraries
 * are loaded at the first call (av_lazy.c).
 *
 * Used by: curate/table, data, encoder/encode, media, train/run, vfm-curate, vfm-sample
 * Calls: base, io
 * Read first: video_in.h, video_out.h, probe.h
 */
