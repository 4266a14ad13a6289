/* clip_keys.c - keys from the signs and places of the largest coefficients of a hash. */
#include "curate/dedup/clip_keys.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/clones.h"
#include "base/philox.h"
#include "media/match/clip_compare.h"
#include "media/match/clip_crop.h"

#define TABLES VFM_CLIP_TABLES
#define MOST   VFM_IMAGE_TABLES
#define KEYS   VFM_CLIP_KEYS
#define COEFS  VFM_CLIP_HASH_COEFS
#define GROUPS VFM_CLIP_GROUPS
#define SIZE   8 /* coefficients of a group */
#define LANES  8 /* slots at once */
#define MOTION 4 /* groups of a key of motion */

typedef int32_t lanes __attribute__((vector_size(4 * LANES)));
typedef uint64_t wide __attribute__((vector_size(8 * LANES)));

static uint8_t groups[MOST][GROUPS][SIZE];
static float weight[COEFS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Groups are drawn without repetition; a weight is the frequency of a coefficient, the square root of u^2 + v^2. */
static void draw_groups(void)
{
	const struct vfm_rng r = vfm_rng_stream(1, 0, 0, VFM_RNG_DATA);
	uint64_t draw = 0;

	for (int t = 0; t < MOST; t++)
		for (int g = 0; g < GROUPS; g++) {
			uint8_t all[COEFS];

			for (int i = 0; i < COEFS; i++)
				all[i] = (uint8_t)i;
			for (int i = 0; i < SIZE; i++) {
				uint64_t at = (uint64_t)i + vfm_rng_below(&r, draw++, (uint64_t)(COEFS - i));

				groups[t][g][i] = all[at];
				all[at] = all[i];
			}
		}
	for (int i = 0; i < COEFS; i++) {
		int u, v;

		vfm_clip_hash_place(i, &u, &v);
		weight[i] = sqrtf((float)(u * u + v * v));
	}
}

/* Adds a key to the least ones, ascending; 0 is none. */
static void add_key(uint32_t *keys, uint32_t key)
{
	int at = 0;

	key += !key;
	while (at < KEYS && keys[at] && keys[at] < key)
		at++;
	if (at == KEYS || keys[at] == key)
		return;
	for (int i = KEYS - 1; i > at; i--)
		keys[i] = keys[i - 1];
	keys[at] = key;
}

/* The keys of LANES slots, each of its n largest coefficients and its signs.  The first odd one has the sign 0, whether
 * mirrored or not. */
static inline __attribute__((always_inline)) void slot_keys_of(
	uint32_t key[LANES], const lanes *largest, int n, const wide *sign)
{
	wide x = {0}, flip = {0}, seen = {0};

	for (int g = 0; g < n; g++) {
		const wide at = __builtin_convertvector(largest[g] & 63, wide);
		wide s = *sign >> at & 1, odd = (VFM_CLIP_HASH_ODD >> at) & 1;

		flip |= s & odd & ~seen;
		seen |= odd;
		s ^= flip & odd;
		x = x << 7 | at << 1 | s;
	}
	x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9); /* splitmix64 */
	x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
	for (int k = 0; k < LANES; k++)
		key[k] = (uint32_t)(x[k] >> 32);
}

/* Some slots, or parts of an image, whose keys are made at once. */
struct batch {
	lanes size[COEFS]; /* magnitudes << 6 | coefficient */
	uint64_t sign[LANES];
};

static inline __attribute__((always_inline)) void batch_set(struct batch *b, int k, const float x[COEFS])
{
	b->sign[k] = 0;
	for (int i = 0; i < COEFS; i++) {
		b->size[i][k] = (int32_t)fminf(fabsf(x[i]) * weight[i] * 8, 1 << 24) << 6 | i;
		b->sign[k] |= (uint64_t)(x[i] > 0) << i;
	}
}

/* The keys of a batch in table t. */
static inline __attribute__((always_inline)) void batch_keys(
	uint32_t own[LANES], const struct batch *b, int t, int of_key)
{
	lanes most[GROUPS];
	wide signs;

	memcpy(&signs, b->sign, sizeof(signs));
	for (int g = 0; g < of_key; g++) {
		const uint8_t *of = groups[t][g];

		most[g] = b->size[of[0]];
		for (int i = 1; i < SIZE; i++) {
			const lanes *x = &b->size[of[i]];

			for (int k = 0; k < LANES; k++)
				most[g][k] = (*x)[k] > most[g][k] ? (*x)[k] : most[g][k];
		}
	}
	slot_keys_of(own, most, of_key, &signs);
}

/* For each table in which all slots of the clip have one key (as in a still clip), adds the keys of crops of its middle
 * slot, three of the nine crops per table, so that the clip shares keys with its crops. */
static inline __attribute__((always_inline)) void add_crops(
	uint32_t keys[][KEYS], const struct vfm_clip_rows *r, int of_key)
{
	struct batch b[2] = {0};
	const int middle = r->slots / 2;
	int alone = 0;

	for (int t = 0; t < TABLES; t++)
		alone += keys[t][0] && !keys[t][1];
	if (!alone || !r->strong[middle])
		return;
	for (int c = 0; c < VFM_CLIP_CROPS; c++) {
		float x[COEFS];

		vfm_clip_hash_crop(x, r->x[middle], c);
		batch_set(&b[c / LANES], c % LANES, x);
	}
	for (int t = 0; t < TABLES; t++) {
		uint32_t own[2][LANES];

		if (!keys[t][0] || keys[t][1])
			continue;
		batch_keys(own[0], &b[0], t, of_key);
		batch_keys(own[1], &b[1], t, of_key);
		for (int i = 1; i < KEYS; i++) {
			int c = ((KEYS - 1) * t + i) % VFM_CLIP_CROPS;

			add_key(keys[t], own[c / LANES][c % LANES]);
		}
	}
}

/* Adds the keys of the image, of its other boxes, and of its crops: three crops per table. */
static inline __attribute__((always_inline)) void image_keys_of(
	uint32_t keys[][KEYS], const struct vfm_clip_rows *r, int of_key)
{
	float parts[VFM_IMAGE_PARTS][COEFS];
	const int n = vfm_clip_image_parts(parts, r), others = n - VFM_CLIP_CROPS;
	struct batch b[2] = {0};

	_Static_assert(VFM_IMAGE_PARTS < 2 * LANES, "the image and its parts are two batches");
	batch_set(&b[0], 0, r->x[0]);
	for (int i = 1; i <= n; i++)
		batch_set(&b[i / LANES], i % LANES, parts[i - 1]);
	for (int t = 0; t < MOST; t++) {
		uint32_t own[2][LANES];

		batch_keys(own[0], &b[0], t, of_key);
		batch_keys(own[1], &b[1], t, of_key);
		add_key(keys[t], own[0][0]);
		for (int i = 0; i < KEYS - 1; i++) {
			int p = i < others ? i : others + ((KEYS - 1) * t + i) % VFM_CLIP_CROPS;

			add_key(keys[t], own[(p + 1) / LANES][(p + 1) % LANES]);
		}
	}
}

static inline __attribute__((always_inline)) void clip_keys_of(
	uint32_t keys[][KEYS], const struct vfm_clip_rows *r, int of_key)
{
	for (int at = 0; at < r->slots; at += LANES) {
		const int n = r->slots - at < LANES ? r->slots - at : LANES;
		struct batch b = {0};

		for (int k = 0; k < n; k++)
			batch_set(&b, k, r->x[at + k]);
		for (int t = 0; t < TABLES; t++) {
			uint32_t own[LANES];

			batch_keys(own, &b, t, of_key);
			for (int k = 0; k < n; k++)
				if (r->strong[at + k])
					add_key(keys[t], own[k]);
		}
	}
	add_crops(keys, r, of_key);
}

VFM_CLONES("avx2", "default")
int vfm_clip_keys_of(uint32_t keys[VFM_IMAGE_TABLES][VFM_CLIP_KEYS], const struct vfm_clip_rows *r, int of_key)
{
	pthread_once(&once, draw_groups);
	memset(keys, 0, sizeof(uint32_t[MOST][KEYS]));
	if (r->has_view)
		image_keys_of(keys, r, of_key);
	else
		clip_keys_of(keys, r, of_key);
	return r->has_view ? MOST : TABLES;
}

uint32_t vfm_clip_motion_key_of(const struct vfm_clip_rows *r, int table)
{
	uint32_t least = 0;

	pthread_once(&once, draw_groups);
	for (int k = 0; k + 1 < r->slots; k++) {
		lanes largest[MOTION] = {0}; /* in the first lane */
		wide sign = {0};
		uint32_t keys[LANES], key;
		float sum = 0;

		for (int i = 0; i < COEFS; i++) {
			float d = r->x[k + 1][i] - r->x[k][i];

			sign[0] |= (uint64_t)(d > 0) << i;
			sum += d * d;
		}
		if (!r->strong[k] || !r->strong[k + 1] || sum < VFM_CLIP_HASH_STILL * VFM_CLIP_HASH_STILL)
			continue;
		for (int g = 0; g < MOTION; g++) {
			float most = -1;

			for (int i = 0; i < SIZE; i++) {
				int c = groups[table][g][i];
				float size = fabsf(r->x[k + 1][c] - r->x[k][c]) * weight[c];

				if (size > most) {
					most = size;
					largest[g][0] = c;
				}
			}
		}
		slot_keys_of(keys, largest, MOTION, &sign);
		key = keys[0] + !keys[0];
		least = !least || key < least ? key : least;
	}
	return least;
}
