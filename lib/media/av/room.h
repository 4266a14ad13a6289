/* media/av - FFmpeg: probe, decode, encode, copy; conversion to progressive SDR; sound; exact times; downloads.  The
 * first call loads its libraries (av_lazy.c).
 *
 * Used by: curate/report, curate/table, data, encoder/encode, media, train/run, train/sample, vfm-curate
 * Calls: base, io
 * Read first: video_in.h, video_out.h, probe.h
 */
