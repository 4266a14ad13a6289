/* vae_impl.h - the parts of the VAE: its configuration, its layers in order, and the frames between them.
 *
 *	vae_config.c        config.json, or the shapes of a release -> struct vae_config
 *	vae_config_cosmos.c config.json of Cosmos
 *	vae_config_ltx.c    config.json of LTX-Video
 *	vae_release_ltx.c   LTX-Video: the tensors and the metadata of a release
 *	vae_config_hunyuan.c  config.json of HunyuanVideo 1.5
 *	vae_wan.c           Wan: the names of tensors, and the constants of the releases
 *	vae_net.c           struct vae_config -> the list of layers, with the tensors that each wants
 *	vae_net_cosmos.c    the list of layers of Cosmos
 *	vae_net_ltx.c       the list of layers of LTX-Video
 *	vae_net_hunyuan.c   the list of layers of HunyuanVideo 1.5
 *	vae_load.c          tensors of files -> operands of ops
 *	vae_modulate.c      the norms of a decoder that is conditioned on a time
 *	vae_frame.c         the memory of frames, and the frames before the current one
 *	vae_run.c           a frame through the layers
 *	vae_order.c         the pixels of a frame in another order
 *	vae_res.c           residual blocks, in strips of rows
 *	vae_attn.c          attention over a frame, and over time
 *	vae_session.c       pixels and latents of a session
 *	vae_clip.c          whole clips, tiles
 *	vae.c               open, close, identity
 */
#ifndef VFM_ENCODER_VAE_VAE_IMPL_H
#define VFM_ENCODER_VAE_VAE_IMPL_H

#include "ckpt/weights.h"
#include "device/ops/ops.h"
#include "encoder/vae/vae.h"

enum { VAE_LEVELS_MAX = 8, VAE_Z_MAX = 256, VAE_RES_MAX = 16, VAE_DIM_MAX = 4096, VAE_PATCH_MAX = 8 };
enum { VAE_SCALING_MAX = 4096 }; /* values of latents_mean */
enum { VAE_WAN_GROUP = 4 };      /* frames that Wan encodes at once, after the first frame */

enum vae_family { VAE_WAN, VAE_COSMOS, VAE_LTX, VAE_HUNYUAN };
enum vae_part { VAE_ENCODER, VAE_DECODER, VAE_PARTS };

struct vae_wan {
	bool original; /* tensors have the names of Wan's releases */
	bool residual; /* Wan 2.2: shortcuts over the blocks of a level */
	int base_dim, decoder_base_dim;
	int levels, dim_mult[VAE_LEVELS_MAX];
	bool temporal_down[VAE_LEVELS_MAX]; /* [levels - 1] */
};
/* Block i of a part has dim[i] input and dim[i + 1] output channels. */
struct vae_cosmos {
	bool haar; /* patches are wavelets; else pixels */
	struct vae_cosmos_part {
		int blocks, dim[VAE_LEVELS_MAX + 1];
		bool attn[VAE_LEVELS_MAX];                        /* attention after each residual block */
		bool space[VAE_LEVELS_MAX], time[VAE_LEVELS_MAX]; /* the block ends with resampling by 2 */
	} part[VAE_PARTS];
};
enum vae_ltx_sampler { /* of a level; a decoder has only NONE and ALL, channels to pixels */
	VAE_LTX_NONE,
	VAE_LTX_CONV,  /* a convolution with stride 2 */
	VAE_LTX_SPACE, /* pixels to channels */
	VAE_LTX_TIME,  /* two frames to channels */
	VAE_LTX_ALL,   /* both */
};
/* Level i of a part has dim[i] input and dim[i + 1] output channels. */
struct vae_ltx {
	bool original; /* tensors have the names of the releases of Lightricks */
	bool prefixed; /* these names begin with "vae." */
	bool timestep; /* the decoder is conditioned on VAE_DECODE_TIMESTEP */
	bool causal;   /* the decoder's convolutions do not read the next frame */
	float eps;     /* of the norms in front of shortcuts */
	struct vae_ltx_part {
		int levels, dim[VAE_LEVELS_MAX + 1];
		int resnets[VAE_LEVELS_MAX + 1]; /* [levels]: of the middle block */
		bool noise[VAE_LEVELS_MAX + 1];  /* [levels]: of the middle block; residual blocks add noise */
		enum vae_ltx_sampler sampler[VAE_LEVELS_MAX];
		int factor[VAE_LEVELS_MAX];    /* decoder: the sampler divides channels by it */
		bool residual[VAE_LEVELS_MAX]; /* decoder: the sampler has a shortcut */
	} part[VAE_PARTS];
};

/* Block i of a part has dim[i] input and dim[i + 1] output channels; its residual blocks have inner[i]. */
struct vae_hunyuan {
	bool original; /* tensors have the names of the release of Tencent */
	int blocks;
	struct vae_hunyuan_part {
		int dim[VAE_LEVELS_MAX + 1], inner[VAE_LEVELS_MAX];
		bool space[VAE_LEVELS_MAX], time[VAE_LEVELS_MAX]; /* the block ends with resampling; time needs space */
	} part[VAE_PARTS];
};

struct vae_config {
	enum vae_family family;
	int z_dim, num_res_blocks;
	int patch, patch_t;            /* the encoder's input: patch_t frames in patches of patch x patch pixels */
	int in_channels, out_channels; /* of such inputs, and of the decoder's outputs */
	int ratio, ratio_t;            /* inputs per latent: in height and in width; in time */
	int step;                      /* a clip has 1 + n step frames */
	int scaling_frames;            /* rows of mean and std: 1 for all latent frames; 0: latents are not scaled */
	/* [scaling_frames, z_dim] */
	float mean[VAE_SCALING_MAX], std[VAE_SCALING_MAX];
	struct vae_wan wan;
	struct vae_cosmos cosmos;
	struct vae_ltx ltx;
	struct vae_hunyuan hunyuan;
};

/* The decoder of LTX-Video 0.9.1 and later: its time, and the share of noise in its input (the model's card). */
#define VAE_DECODE_TIMESTEP 0.05f
#define VAE_DECODE_NOISE    0.025f

/* VFM_EUSAGE names the file and the key. */
int vae_config_read(struct vae_config *c, struct vfm_weights *w, struct vfm_err *err);
/* Reads a key of config.json; leaves *out unchanged if the key is absent. */
int vae_config_int(const json_t *o, const char *key, int min, int max, int *out, struct vfm_err *err);
/* Returns the array `key` of at most `max` elements; NULL with *n 0 if the key is absent or null. */
int vae_config_array(const json_t *o, const char *key, size_t max, const json_t **a, size_t *n, struct vfm_err *err);
/* Reads the elements of such an array. */
int vae_config_ints(const json_t *a, const char *key, int64_t min, int64_t max, int *out, struct vfm_err *err);
int vae_config_floats(const json_t *a, const char *key, bool positive, float *out, struct vfm_err *err);
/* Checks that in_channels and out_channels are 3, the default. */
int vae_config_rgb(const json_t *o, struct vfm_err *err);
int vae_config_bools(const json_t *a, const char *key, bool *out, struct vfm_err *err);
int vae_config_bool(const json_t *o, const char *key, bool *out, struct vfm_err *err);
int vae_config_cosmos(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err);
int vae_config_ltx(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err);
int vae_config_hunyuan(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err);
int vae_config_hunyuan_release(struct vae_config *c, struct vfm_weights *w, const json_t *o, struct vfm_err *err);
/* Checks that encoder and decoder fit, and sets the geometry. */
int vae_ltx_finish(struct vae_config *c, struct vfm_err *err);
/* Reads mean and deviation of latents from tensors; divides the latter by the factor. */
int vae_ltx_scaling(struct vae_config *c, struct vfm_weights *w, const char *mean, const char *std, double factor,
	struct vfm_err *err);
/* Returns whether the tensors have the names of a release of LTX-Video. */
bool vae_is_ltx_release(const struct vfm_weights *w);
int vae_config_ltx_release(struct vae_config *c, struct vfm_weights *w, struct vfm_err *err);

/* Returns the mean, or the deviation, of latent frame t: [z_dim]. */
static inline const float *vae_scaling(const struct vae_config *c, const float *of, int64_t t)
{
	return of + (c->scaling_frames > 1 ? t * c->z_dim : 0);
}

/* Returns the number of frames before input t of the encoder, or output t of the decoder. */
static inline int64_t vae_frames_before(const struct vae_config *c, int64_t t)
{
	return t ? 1 + (t - 1) * c->patch_t : 0;
}

/* ---- names of Wan (vae_wan.c) ---- */

/* The position of a layer in the network. */
struct vae_place {
	enum vae_part part;
	bool mid;
	int level, index; /* block within the level, with resampling last; mid: block 0 or 1 */
};
enum vae_tensor {
	VAE_CONV_IN,
	VAE_NORM_OUT,
	VAE_CONV_OUT,
	VAE_QUANT, /* quant_conv of the encoder, post_quant_conv of the decoder */
	VAE_NORM1,
	VAE_CONV1,
	VAE_NORM2,
	VAE_CONV2,
	VAE_SHORTCUT,
	VAE_ATTN_NORM,
	VAE_ATTN_QKV,
	VAE_ATTN_PROJ,
	VAE_RESAMPLE,
	VAE_TIME_CONV,
};
#define VAE_NAME 128
/* Writes the name of a tensor, without ".weight" and ".bias" (for a norm: the whole name). */
void vae_name(char name[VAE_NAME], const struct vae_config *c, const struct vae_place *p, enum vae_tensor t);
/* Sets mean and std to those of the release with z_dim channels.  Returns false if there is none. */
bool vae_release_scaling(struct vae_config *c);

/* ---- layers (vae_net.c) ---- */

/* Convolutions with constant weights. */
enum vae_fixed {
	VAE_LEARNED,
	VAE_AVG_DOWN, /* AvgDown3D: means of groups of channels and pixels; a group of one moves pixels to channels */
	VAE_DUP_UP,   /* DupUp3D, one frame: output (row, column, channel) of a pixel of 2 x 2 is an input channel */
	VAE_HAAR,     /* pixels (colour, frame, row, column) of a patch -> wavelets (band, colour) */
	VAE_HAAR_INVERSE,
	VAE_SUM_FRAMES, /* the sum of the results of a convolution that is `split` into frames */
	VAE_PICK,       /* each output is one input */
};
/* VAE_PICK: output (cell, c), c < width, is the input cell of_cell + c / repeat % modulo of_channel. */
struct vae_pick {
	int width, repeat, modulo, of_cell, of_channel;
};
struct vae_conv {
	/* [O', C, (kt,) kh, kw], [O'] each; several sources are concatenated by rows */
	const struct vfm_weight *from[3], *from_bias[3];
	int64_t first;  /* the outputs are the rows [first, first + out) of from */
	int64_t scaled; /* the number of first rows that are multiplied by `scale` */
	float scale;
	int split; /* frames of the tensor's kernel: rows [i O', (i + 1) O') belong to frame i; 0: none */
	int cells; /* the tensor's rows are (channel, cell of `cells`), the outputs (cell, channel); 0: the same */
	enum vae_fixed fixed;
	int dup_t; /* VAE_DUP_UP: index of the frame */
	struct vae_pick pick;
	int group;       /* VAE_AVG_DOWN: inputs of a mean */
	bool taps_first; /* VAE_AVG_DOWN: the inputs are (pixel, channel); else (channel, pixel) */
	int in, out, kernel[3], stride[3], pad[4];
	int edge;               /* pixels of a border that repeats the nearest pixels, besides `pad` */
	int up;                 /* 1: its input is the upsampled frame */
	bool packed;            /* w is in the device's layout */
	struct vfm_tensor w, b; /* [out, taps, in]; [out] f32 */
};
enum vae_norm_kind {
	VAE_NORM_RMS,         /* over the channels of a pixel */
	VAE_NORM_GROUP,       /* over all channels of a frame */
	VAE_NORM_MEAN_SQUARE, /* over the channels of a pixel */
	VAE_NORM_LAYER,       /* over the channels of a pixel */
};
/* shift = table[row] + e[row], scale = table[row + 1] + e[row + 1], where e is the embedding of a time:
 * linear2(silu(linear1(sinusoids of multiplier VAE_DECODE_TIMESTEP))) (PixArt-alpha, arXiv 2310.00426). */
struct vae_modulation {
	const struct vfm_weight *table;      /* [rows, dim]; NULL: there is none */
	const struct vfm_weight *linear1[2]; /* weight [rows dim, VAE_TIME_DIM], bias */
	const struct vfm_weight *linear2[2]; /* weight [rows dim, rows dim], bias */
	const struct vfm_weight *multiplier; /* a number */
	int rows, row;
};
enum { VAE_TIME_DIM = 256 };
struct vae_norm { /* n(x) w + b; with a modulation, w = 1 + scale, b = shift */
	enum vae_norm_kind kind;
	float eps;
	const struct vfm_weight *from, *from_bias; /* NULL: 1, and 0 */
	struct vae_modulation by;
	int dim;
	struct vfm_tensor w, b; /* [dim] f32 */
};

enum vae_kind {
	/* conv[0], on every second frame if its stride of time is 2; plus the frame that `add` names, through
	 * shortcut[0] if has_shortcut; plus noise, the same in each frame, times noise.w, if noise.out.  A kernel of
	 * 3 frames covers `ahead` frames after the current one; the last frame of the clip is repeated.  The first
	 * frame goes through shortcut[1] instead if that has outputs. */
	VAE_LAYER_CONV,
	/* x' + conv[1](silu(norm[1](conv[0](silu(norm[0](x)))))); x' = conv[2](x) if the layer has conv[2] */
	VAE_LAYER_RES,
	VAE_LAYER_ATTN, /* x + conv[1](attention(conv[0](norm[0](x)))), both convolutions 1 x 1 */
	/* x + conv[2](o): queries conv[0](norm[0](x)), keys and values conv[1](norm[0](x)) of this and all previous
	 * frames, at each pixel */
	VAE_LAYER_ATTN_TIME,
	VAE_LAYER_ATTN_CAUSAL, /* the same over all pixels of this and all previous frames */
	VAE_LAYER_NORM,        /* silu(norm[0](x)) */
	/* keeps x for the shortcut of a level or of a residual block; if has_shortcut, keeps shortcut[0](norm[0](x)).
	 * `ahead`: the layers up to its reader look so many frames ahead. */
	VAE_LAYER_SAVE,
	VAE_LAYER_ADD,  /* x + shortcut[0](saved) */
	VAE_LAYER_DOWN, /* conv[0] with stride 2; with `temporal`, then conv[1] over 3 frames, every second frame */
	/* with `temporal`, conv[1] and conv[2] make two frames of one; then conv[0] of each upsampled frame */
	VAE_LAYER_UP,
	VAE_LAYER_TWICE,   /* every frame twice, except the first */
	VAE_LAYER_NEAREST, /* doubles height and width */
	/* Channels (slot, row, column, channel) to pixels of 2 x 2, and with `temporal` to two frames; of the first
	 * frame only one, as `first` says. */
	VAE_LAYER_SHUFFLE,
};
enum vae_add { VAE_ADD_NONE, VAE_ADD_INPUT, VAE_ADD_SAVED };
enum vae_first {        /* the first frame of SHUFFLE, if temporal */
	VAE_FIRST_LAST, /* slot 1 */
	VAE_FIRST_EVEN, /* channels (row, column, slot, channel): slot 0 */
};
struct vae_layer {
	enum vae_kind kind;
	enum vae_add add;
	enum vae_first first;
	bool temporal, has_shortcut;
	int ahead;                            /* CONV, SAVE: frames */
	struct vae_conv conv[3], shortcut[2]; /* UP: one for each frame; CONV: [1] of the first frame; else one */
	struct vae_conv noise;                /* [out, 1] */
	int noise_id;                         /* number of the noise in the list */
	struct vae_norm norm[2];
	int in; /* channels */
};
struct vae_net {
	struct vae_layer *layer;
	int n, out;        /* out: channels of the last layer */
	bool repeat_first; /* CONV: copies of the first frame precede it; else zeros */
	int noises;        /* layers with noise */
};

/* Lists the layers of a part and requests their tensors from w.  The list depends on the dtype of frames. */
void vae_net_plan(struct vae_net *net, const struct vae_config *c, enum vae_part part, enum vfm_dtype dtype,
	struct vfm_weights *w);
void vae_net_free(struct vae_net *net); /* host memory */

/* A list of layers under construction. */
struct vae_plan {
	struct vae_net *net;
	const struct vae_config *c;
	struct vfm_weights *w;
	enum vfm_dtype dtype;
	size_t cap;
	struct vae_place at; /* part; the rest is Wan's */
};
struct vae_layer *vae_plan_layer(struct vae_plan *p, enum vae_kind kind, int in);
/* Returns a convolution with stride 1 whose output has the size of its input. */
struct vae_conv vae_conv_of(int in, int out, int kt, int k);
/* Makes *v a fixed mean over blocks of kt x k x k, whose channels are cut into `out` groups. */
void vae_conv_mean(struct vae_conv *v, int in, int out, int kt, int k);
/* Requires source i of v, the tensor NAME.weight of `rows` rows, and NAME.bias. */
void vae_want_rows(struct vae_plan *p, struct vae_conv *v, int i, int rows, const char *name);
void vae_plan_cosmos(struct vae_plan *p);
void vae_plan_ltx(struct vae_plan *p);
void vae_plan_hunyuan(struct vae_plan *p);

/* ---- weights (vae_load.c) ---- */

/* Moves the tensors of a planned net to the device.  *mem is one block, which the caller frees with vfm_dev_free; NULL
 * after a failure. */
int vae_net_load(struct vae_net *net, struct vfm_stream *s, enum vfm_dtype dtype, void **mem, size_t *bytes,
	struct vfm_err *err);
/* Computes weight [dim] and bias [dim] of a norm with a modulation. */
void vae_modulate(const struct vae_norm *n, float *weight, float *bias);

/* ---- running (vae_frame.c, vae_run.c, vae_res.c, vae_attn.c) ---- */

struct vae_block;
struct vae_frame {           /* device memory of a run, with a reference count */
	struct vfm_tensor t; /* [1,H,W,C] */
	size_t bytes;        /* of its memory */
	int refs;
	struct vae_block *block; /* shared memory; NULL: the frame has its own */
	size_t start;            /* offset in the block */
	struct vae_frame *next;  /* in the block */
	struct vae_frame *pair;  /* not NULL: the memory is the second half of this frame's, which it keeps */
};
/* The n frames before the current one, oldest first, in their own memory. */
struct vae_past {
	struct vae_frame *f[2];
	int n;
};
enum { VAE_SAVED_MAX = 3 }; /* a residual block looks 2 frames ahead */
struct vae_layer_state {
	struct vae_past past[2];
	/* SAVE: inputs of the level that its end has not yet read, oldest first; with `ahead` in the memory of `ring` */
	struct vae_frame *saved[VAE_SAVED_MAX], *ring[VAE_SAVED_MAX];
	int n_saved;
	struct vae_frame **kv; /* ATTN_TIME, ATTN_CAUSAL: [n_kv] keys and values of the frames so far, [1,H,W,2C] */
	size_t n_kv, kv_cap;
	int64_t frames;          /* inputs so far */
	struct vae_frame *spare; /* UP: memory for the frame after those of past[0] */
	struct vae_frame *noise; /* CONV: [1,H,W,1] */
};
/* Rows of one frame in the order of another, on the device; made at the first use, and shared by layers. */
enum vae_order {
	VAE_ORDER_DUP,    /* (pixel, row, column) -> pixels of twice the size, that of DupUp3D */
	VAE_ORDER_SLOT_0, /* (pixel, slot, row, column) of two slots -> pixels of twice the size */
	VAE_ORDER_SLOT_1,
	VAE_ORDER_EVEN, /* (pixel, row, column, slot) -> the same, of slot 0 */
	VAE_ORDER_EDGE, /* pixels -> pixels with a border */
};
struct vae_index {
	enum vae_order order;
	int64_t h, w, n; /* of the source; n: rows of the result */
	void *data;      /* [n] i32 */
	struct vae_index *next;
};
struct vae_run {
	struct vfm_stream *s;
	enum vfm_dtype dtype;
	const struct vae_net *net;
	struct vae_layer_state *state; /* [net->n] */
	int64_t strip; /* RES: approximate bytes of the rows that it computes at once; set before the first input */
	struct vae_block *blocks;
	struct vae_index *indices;
	size_t room;   /* bytes of the first block */
	bool from_end; /* new frames are placed at the end of a gap; else at its start */
	/* Every convolution gets two frames or more: those before the current one share an allocation, which wastes
	 * less where memory comes in huge pages. */
	bool pairs;
	/* Receives each frame of the last layer, [1,H,W,C]; borrowed. */
	int (*emit)(void *ctx, const struct vae_frame *y, struct vfm_err *err);
	void *ctx;
};
/* h and w are those of the inputs. */
void vae_run_init(
	struct vae_run *r, struct vfm_stream *s, enum vfm_dtype dtype, const struct vae_net *net, int64_t h, int64_t w);
void vae_run_release(struct vae_run *r);

/* Frames that exist while an input passes through the layers share memory.  The first block has room for the frames of
 * any layer; further blocks follow if it is full.  An input and the results of a layer exist together, then only the
 * results.  Layers that enlarge frames therefore put the results at the other end of the block (from_end).  Frames that
 * stay from input to input have their own memory (lasting), so they leave no gaps in the blocks.
 *
 * Both functions return a frame [1,h,w,c] with one reference, which vae_frame_drop releases. */
int vae_frame_new(struct vae_run *r, int64_t h, int64_t w, int64_t c, struct vae_frame **f, struct vfm_err *err);
int vae_frame_lasting(struct vae_run *r, int64_t h, int64_t w, int64_t c, struct vae_frame **f, struct vfm_err *err);
/* As vae_frame_new in shared memory, without a shape. */
int vae_frame_bytes(struct vae_run *r, size_t bytes, struct vae_frame **f, struct vfm_err *err);
/* frees the blocks; their frames must have been dropped */
void vae_frame_release(struct vae_run *r);
void vae_frame_drop(struct vae_run *r, struct vae_frame *f); /* accepts NULL */
struct vae_frame *vae_frame_keep(struct vae_frame *f);       /* adds a reference */
/* Makes *x the only reference of its frame, so that the frame may be overwritten. */
int vae_frame_own(struct vae_run *r, struct vae_frame **x, struct vfm_err *err);
/* Returns the frame as [H*W, C]. */
struct vfm_tensor vae_frame_rows(const struct vae_frame *f);
/* Returns rows [first, first + n) of the frame, [1,n,W,C], without a reference. */
struct vae_frame vae_frame_window(const struct vae_frame *f, int64_t first, int64_t n);
int vae_frame_copy(struct vae_run *r, const struct vae_frame *x, const struct vae_frame *y, struct vfm_err *err);

/* Copies x after the frames of p; drops the oldest if there are two. */
int vae_past_add(struct vae_run *r, struct vae_past *p, const struct vae_frame *x, struct vfm_err *err);
/* As vae_past_add row by row: *f is the memory for the next frame [1,size], which is the oldest frame's if there are
 * two.  Once all rows are written, vae_past_shift makes it the newest. */
int vae_past_next(
	struct vae_run *r, struct vae_past *p, const int64_t size[3], struct vae_frame **f, struct vfm_err *err);
void vae_past_shift(struct vae_past *p);
/* Makes *x, a lasting frame, the newest.  Sets *x to the oldest of two previous frames, or NULL. */
void vae_past_swap(struct vae_past *p, struct vae_frame **x);
void vae_past_release(struct vae_run *r, struct vae_past *p);
/* Returns one tensor of frames at arbitrary addresses. */
struct vfm_tensor vae_past_tensor(const struct vae_past *p);

/* Runs the layers on x, whose reference it takes. */
int vae_run_push(struct vae_run *r, struct vae_frame *x, struct vfm_err *err);
/* Ends the clip: emits the frames that wait for later ones. */
int vae_run_finish(struct vae_run *r, struct vfm_err *err);

/* Computes one frame *y: the convolution of the frame x and of `past` before it, plus `add`, which may be *y.  past and
 * add may be NULL; *y NULL: a new frame. */
int vae_run_conv(struct vae_run *r, const struct vae_conv *v, const struct vae_past *past, const struct vae_frame *x,
	const struct vae_frame *add, struct vae_frame **y, struct vfm_err *err);
int vae_run_norm(struct vae_run *r, const struct vae_norm *n, enum vfm_act act, const struct vae_frame *x,
	const struct vae_frame *y, struct vfm_err *err);

/* Layers of vae_res.c and vae_attn.c.  They take the reference of x and set *y to the result. */
int vae_layer_res(struct vae_run *r, const struct vae_layer *l, struct vae_layer_state *st, struct vae_frame *x,
	struct vae_frame **y, struct vfm_err *err);
/* Returns the bytes of shared memory for frames of h x w pixels. */
size_t vae_res_room(const struct vae_run *r, const struct vae_layer *l, int64_t h, int64_t w);
int vae_layer_attn(
	struct vae_run *r, const struct vae_layer *l, struct vae_frame *x, struct vae_frame **y, struct vfm_err *err);
/* ATTN_TIME and ATTN_CAUSAL. */
int vae_layer_attn_past(struct vae_run *r, const struct vae_layer *l, struct vae_layer_state *st, struct vae_frame *x,
	struct vae_frame **y, struct vfm_err *err);
/* Sets y to rows of x (vae_order.c); h and w are those of the source. */
int vae_order_rows(struct vae_run *r, enum vae_order order, int64_t h, int64_t w, const struct vae_frame *x,
	const struct vae_frame *y, struct vfm_err *err);
void vae_order_release(struct vae_run *r);

/* ---- sessions and clips (vae.c, vae_session.c, vae_clip.c) ---- */

struct vfm_vae {
	struct vfm_stream *s;
	enum vfm_dtype dtype;
	struct vfm_vae_tile tile;
	struct vae_config c;
	struct vfm_weights *weights;
	struct vae_net net[VAE_PARTS]; /* without layers if the part is skipped */
	void *mem[VAE_PARTS];          /* its weights; NULL: not on the device */
	size_t bytes[VAE_PARTS];
	struct vfm_geometry geometry;
	struct vfm_encoder_id id;
};

/* The destination of the frames of a clip: rgb u8 and f32, or latents as f32; either may be NULL. */
struct vae_out {
	uint8_t *rgb;  /* [T, h p, w p, 3] */
	float *f32;    /* the same, or [T, C, h, w] */
	int64_t h, w;  /* patches or latents of the whole frame */
	int64_t first; /* the output of the net at which the arrays begin */
};
/* A rectangle of the whole frame. */
struct vae_window {
	int64_t y, x, h, w;
};

struct vfm_vae_session {
	struct vfm_vae *v;
	enum vae_part part;
	int64_t h, w;     /* inputs of the net: patches or latents */
	int64_t frames;   /* inputs so far */
	int64_t pictures; /* encoder: pictures so far */
	int64_t emitted;
	bool failed;
	struct vae_run run;
	float *host; /* [n]: a frame of the input or of the output */
	void *raw;   /* [n], in the dtype of the run */
	size_t n;
	struct vae_out out; /* of the current push */
	float *tile;        /* not NULL: [T, h', w', C], receives the outputs unchanged */
	/* not NULL: receives the pictures of each output, which out.rgb has memory for */
	const struct vfm_picture_sink *to;
};
/* Moves the weights of a part to the device, unless they are there. */
int vae_load_part(struct vfm_vae *v, enum vae_part part, struct vfm_err *err);
int vae_session_begin(
	struct vfm_vae_session **s, struct vfm_vae *v, enum vae_part part, int64_t h, int64_t w, struct vfm_err *err);
/* VFM_EUSAGE: the scaling for this number of latent frames is unknown. */
int vae_check_latent_frames(const struct vfm_vae *v, int64_t t, struct vfm_err *err);
/* Push the next picture, a window of rgb, whose rows have `width` pixels (NULL: a grey picture); or the next latent
 * frame, a window of [C, area], whose rows have `width`. */
int vae_session_pixels(struct vfm_vae_session *s, const uint8_t *rgb, int64_t width, struct vfm_err *err);
int vae_session_latents(struct vfm_vae_session *s, const float *z, int64_t width, int64_t area, struct vfm_err *err);
/* Ends the clip, after its last picture or latent frame. */
int vae_session_finish(struct vfm_vae_session *s, struct vfm_err *err);
/* Stores part of output t of the clip, `raw` [., raw_w, C] from the corner of the window on, in the window `at` of the
 * whole frame. */
void vae_store(const struct vfm_vae *v, enum vae_part part, const struct vae_out *o, int64_t t, const float *raw,
	int64_t raw_w, const struct vae_window *at);

#endif
