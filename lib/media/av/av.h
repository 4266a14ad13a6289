/* av.h - helpers around FFmpeg's libraries, for files that include its headers. */
#ifndef VFM_MEDIA_AV_AV_H
#define VFM_MEDIA_AV_AV_H

#include <libavutil/frame.h>
#include <libavutil/pixfmt.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Installs FFmpeg's log callback, which the functions below read, and limits its single allocations.  Idempotent,
 * thread-safe. */
void vfm_av_init(void);

/* Returns FFmpeg's message for a code. */
const char *vfm_av_strerror(int rc, char buf[128]);

/* Returns VFM_EENV if a function of FFmpeg failed with `rc` because of the machine (no descriptors, no memory), else
 * `otherwise`.  FFmpeg also reports "no memory" if a file requests more than allowed (MAX_ALLOC), so call this before
 * memory is freed. */
int vfm_av_code(int rc, int otherwise);

/* Returns whether so little memory is left that FFmpeg may abort the process when it frees a decoder with threads.  The
 * caller then frees nothing, since its process is about to end with VFM_EENV. */
bool vfm_av_starved(void);

/* Returns the name of a stream's codec for messages; for a codec unknown to FFmpeg, the fourcc of the file. */
struct AVCodecParameters;
const char *vfm_av_codec_name(const struct AVCodecParameters *par, char buf[64]);

/* Return, and clear, the last error line that FFmpeg logged in this thread ("": none). */
const char *vfm_av_last_line(void);
void vfm_av_forget_line(void);

/* Passes each line that FFmpeg logs in this thread, at any level, to a function; NULL stops this.  FFmpeg's http
 * reports the headers of a response, and the end of a chunked one, only in the log. */
void vfm_av_listen(void (*fn)(void *arg, const char *line), void *arg);

/* Counts the error lines of a decoder or demuxer whose `opaque` points to it. */
struct vfm_av_errors {
	atomic_llong lines;
};

#endif
