/* graph.h - a chain of FFmpeg's filters with one input and one output.  The caller sends a frame, then receives until
 * no frame is left.  One thread at a time.
 */
#ifndef VFM_MEDIA_AV_GRAPH_H
#define VFM_MEDIA_AV_GRAPH_H

#include <libavcodec/avcodec.h>
#include <libavutil/frame.h>
#include <libavutil/rational.h>
#include <stdbool.h>

#include "base/err.h"

struct vfm_graph;

/* Returns whether this build of FFmpeg has all filters of a list "a,b,…".  If not, stores the name of a missing one. */
bool vfm_graph_has(const char *filters, char missing[32]);

/* Makes a chain for frames of the size and format of `like`.  VFM_EINPUT: the chain does not accept such frames. */
int vfm_graph_video(
	struct vfm_graph **g, const AVFrame *like, AVRational time_base, const char *chain, struct vfm_err *err);
/* Makes a chain for decoded audio.  `like` gives rate, format and channels. */
int vfm_graph_audio(
	struct vfm_graph **g, const AVFrame *like, AVRational time_base, const char *chain, struct vfm_err *err);
void vfm_graph_free(struct vfm_graph *g); /* no-op for NULL */

AVRational vfm_graph_time_base(const struct vfm_graph *g); /* of the received frames */

/* Sends a frame, to which the chain keeps a reference.  NULL: the end. */
int vfm_graph_send(struct vfm_graph *g, AVFrame *f, struct vfm_err *err);
/* Returns 1 with the next frame in `f`, or 0 if there is none. */
int vfm_graph_receive(struct vfm_graph *g, AVFrame *f, struct vfm_err *err);

#endif
