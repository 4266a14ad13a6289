/* av.h - helpers around FFmpeg's libraries, for files that include its headers. */
#ifndef VFM_MEDIA_AV_AV_H
#define VFM_MEDIA_AV_AV_H

#include <libavutil/frame.h>
#include <libavutil/pixfmt.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"

/* Routes FFmpeg's log here and limits its single allocations; idempotent, thread-safe. */
void vfm_av_init(void);

/* Returns FFmpeg's message for a code. */
const char *vfm_av_strerror(int rc, char buf[128]);

/* Returns VFM_EENV if a function of FFmpeg failed with `rc` because of the machine (no descriptors, no memory), and
 * `otherwise` if not.  FFmpeg also reports no memory if a file asks for more than it may (MAX_ALLOC): call this before
 * memory is freed. */
int vfm_av_code(int rc, int otherwise);

/* Whether so little memory is left that FFmpeg may abort the process when it frees a decoder with threads.  The caller
 * then frees nothing, since its process is about to end with VFM_EENV. */
bool vfm_av_starved(void);

/* Returns the name of the codec of a stream for messages; of one that FFmpeg does not know, the fourcc of the file. */
struct AVCodecParameters;
const char *vfm_av_codec_name(const struct AVCodecParameters *par, char buf[64]);

/* The last error line that FFmpeg logged in this thread ("" = none), and forgetting it. */
const char *vfm_av_last_line(void);
void vfm_av_forget_line(void);

/* Gives each line that FFmpeg logs in this thread, of any level, to a function; NULL ends it.  Its http tells the
 * headers of a response, and the end of one in chunks, to the log alone. */
void vfm_av_listen(void (*fn)(void *arg, const char *line), void *arg);

/* A decoder or demuxer whose `opaque` points to one of these has its error lines counted. */
struct vfm_av_errors {
	atomic_llong lines;
};

#endif
