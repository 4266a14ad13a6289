/* source.h - a media file behind FFmpeg's demuxer, under the rules of video_in.h: only regular files and members of
 * tars, no names of other files, known formats, a time limit.
 *
 * The caller zeroes the struct and owns it.  The struct must not move while it is open, since FFmpeg keeps its address.
 */
#ifndef VFM_MEDIA_AV_SOURCE_H
#define VFM_MEDIA_AV_SOURCE_H

#include <libavformat/avformat.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/clock.h"
#include "base/err.h"
#include "media/av/av.h"

struct vfm_source_opts {
	const struct vfm_limit *limit; /* owned by the caller; read again at each read */
	int64_t max_pixels;            /* per frame, for the decoders that examine the streams */
	struct vfm_av_errors *errors;  /* owned by the caller; NULL: not counted */
};

struct vfm_source {
	const char *path; /* owned by the caller: a file, or the member of a tar (io/input.h) */
	const struct vfm_limit *limit;
	struct vfm_av_errors *errors;
	AVFormatContext *fmt;
	AVIOContext *io;
	int fd, read_errno;    /* read_errno: of a failed read; 0: none */
	int64_t at, size, pos; /* the content is [at, at + size) of the file; pos counts from at */
	bool is_member;        /* false: the content ends where the file ends */
	bool is_cut;           /* the tar ended within the member */
	bool is_open;
	/* FFmpeg is out of memory and may abort when it frees a decoder, so the caller frees nothing */
	bool abandoned;
};

/* Opens the file and finds its streams.  The caller closes it even after an error. */
int vfm_source_open(struct vfm_source *s, const char *path, const struct vfm_source_opts *opts, struct vfm_err *err);
void vfm_source_close(struct vfm_source *s); /* no-op if it is not open */

/* Chooses a stream as players do: the default one of its type, or else the first, except cover pictures.  The demuxer
 * discards all others.  Returns NULL if there is none. */
AVStream *vfm_source_choose(struct vfm_source *s, enum AVMediaType type);
bool vfm_stream_is_cover(const AVStream *s);

/* Empties p, then reads the next packet of a stream into it.  Returns 1, or 0 at the end. */
int vfm_source_read(struct vfm_source *s, const AVStream *of, AVPacket *p, struct vfm_err *err);

/* Fails if the limit is over or a read has failed; FFmpeg reports either only as the end of the data. */
int vfm_source_check(struct vfm_source *s, struct vfm_err *err);

/* Returns VFM_EINPUT or VFM_EENV with the message of FFmpeg's code `rc`: "'PATH': WHAT: …". */
int vfm_source_failed(struct vfm_source *s, int rc, const char *what, struct vfm_err *err);

#endif
