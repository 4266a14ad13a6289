/* audio.h - the sound of a range of a video, for the muxer of a clip.
 *
 * Packets are copied if the container accepts their codec (.mp4: AAC, MP3, AC-3, E-AC-3, ALAC; .mkv: all); otherwise
 * the sound is encoded as AAC.  A packet keeps its time relative to the first frame of the clip.  Copied sound begins
 * with the first packet in the range and ends with the last; encoded sound begins exactly.  One thread at a time.
 */
#ifndef VFM_MEDIA_AV_AUDIO_H
#define VFM_MEDIA_AV_AUDIO_H

#include <libavformat/avformat.h>
#include <stdbool.h>

#include "base/clock.h"
#include "base/err.h"

struct vfm_audio;

/* Opens the sound of `src`: its default audio stream, or else the first.  Sets *a to NULL if it has none.  `limit`
 * belongs to the caller and must outlive *a. */
int vfm_audio_open(struct vfm_audio **a, const char *src, const struct vfm_limit *limit, struct vfm_err *err);
void vfm_audio_close(struct vfm_audio *a); /* no-op for NULL */

/* Adds the audio stream to a muxer, before its header. */
int vfm_audio_add_stream(struct vfm_audio *a, AVFormatContext *muxer, struct vfm_err *err);
/* Sets the time of the clip's first frame to `start_s` on the time axis of the source. */
int vfm_audio_start(struct vfm_audio *a, double start_s, struct vfm_err *err);
/* Writes the packets that begin before `until_s` of the clip. */
int vfm_audio_write(struct vfm_audio *a, double until_s, AVFormatContext *muxer, struct vfm_err *err);

/* Returns whether a packet was written. */
bool vfm_audio_is_written(const struct vfm_audio *a);

#endif
