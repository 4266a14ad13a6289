#include "curate/clip_keys.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/philox.h"

#define TABLES VFM_CLIP_TABLES
#define KEYS   VFM_CLIP_KEYS
#define COEFS  VFM_CLIP_HASH_COEFS
#define GROUPS VFM_CLIP_GROUPS
#define SIZE   8 /* coefficients of a group */
#define LANES  8 /* slots at once */
#define MOTION 4 /* groups of a key of motion */

typedef int32_t lanes __attribute__((vector_size(4 * LANES)));
typedef uint64_t wide __attribute__((vector_size(8 * LANES)));

static uint8_t groups[TABLES][GROUPS][SIZE];
static float weight[COEFS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Groups are drawn without repetition; a weight is the frequency of a coefficient, the square root of u^2 + v^2. */
static void draw_groups(void)
{
	const struct vfm_rng r = vfm_rng_stream(1, 0, 0, VFM_RNG_DATA);
	uint64_t draw = 0;

	for (int t = 0; t < TABLES; t++)
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
	for (int i = 0; i < COEFS; i++)
		weight[i] = sqrtf((float)vfm_clip_hash_frequency(i));
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

/* Of the n largest coefficients and the signs of a slot.  The first odd one has the sign 0, whether mirrored or not. */
static uint32_t slot_key_of(const uint8_t *largest, int n, uint64_t sign)
{
	uint64_t x = 0, flip = 0;
	bool seen = false;

	for (int g = 0; g < n; g++) {
		uint64_t s = sign >> largest[g] & 1;

		if (VFM_CLIP_HASH_ODD >> largest[g] & 1) {
			flip = seen ? flip : s;
			seen = true;
			s ^= flip;
		}
		x = x << 7 | (uint64_t)largest[g] << 1 | s;
	}
	x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9); /* splitmix64 */
	x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
	return (uint32_t)(x >> 32);
}

/* As slot_key_of, of LANES slots. */
static inline __attribute__((always_inline)) void slot_keys_of(
	uint32_t key[LANES], const lanes *largest, int n, const wide *sign)
{
	wide x = {0}, flip = {0}, seen = {0};

	for (int g = 0; g < n; g++) {
		const wide at = __builtin_convertvector(largest[g] & 63, wide);
		wide s = *sign >> at & 1, odd = (VFM_CLIP_HASH_ODD >> at) & 1;

		flip |= s & odd & ~seen; /* that of the first odd one */
		seen |= odd;
		s ^= flip & odd;
		x = x << 7 | at << 1 | s;
	}
	x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9); /* splitmix64 */
	x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
	for (int k = 0; k < LANES; k++)
		key[k] = (uint32_t)(x[k] >> 32);
}

/* size [COEFS]: magnitudes << 6 | coefficient, of some slots */
static inline __attribute__((always_inline)) void add_slots(uint32_t keys[TABLES][KEYS], const lanes size[COEFS],
	const uint64_t *sign, const uint64_t *strong, int n, int of_key)
{
	wide signs = {0};

	memcpy(&signs, sign, (size_t)n * sizeof(*sign));
	for (int t = 0; t < TABLES; t++) {
		uint32_t own[LANES];
		lanes most[GROUPS];

		for (int g = 0; g < of_key; g++) {
			const uint8_t *of = groups[t][g];

			most[g] = size[of[0]];
			for (int i = 1; i < SIZE; i++) {
				const lanes *x = &size[of[i]];

				for (int k = 0; k < LANES; k++)
					most[g][k] = (*x)[k] > most[g][k] ? (*x)[k] : most[g][k];
			}
		}
		slot_keys_of(own, most, of_key, &signs);
		for (int k = 0; k < n; k++)
			if (strong[k])
				add_key(keys[t], own[k]);
	}
}

/* A clip whose slots have one key in a table, as an image and a still clip, gets there those of crops of its middle
 * slot, three of the nine in a table, so that it shares keys with its crops. */
static inline __attribute__((always_inline)) void add_crops(
	uint32_t keys[TABLES][KEYS], const struct vfm_clip_rows *r, int of_key)
{
	uint32_t own[VFM_CLIP_CROPS][TABLES][KEYS] = {{{0}}};
	const int middle = r->slots / 2;
	int alone = 0;

	for (int t = 0; t < TABLES; t++)
		alone += keys[t][0] && !keys[t][1];
	for (int c = 0; c < VFM_CLIP_CROPS && alone && r->strong[middle]; c++) {
		lanes size[COEFS] = {0};
		uint64_t sign = 0;
		float x[COEFS];

		vfm_clip_hash_crop(x, r->x[middle], c);
		for (int i = 0; i < COEFS; i++) {
			size[i][0] = (int32_t)fminf(fabsf(x[i]) * weight[i] * 8, 1 << 24) << 6 | i;
			sign |= (uint64_t)(x[i] > 0) << i;
		}
		add_slots(own[c], size, &sign, &r->strong[middle], 1, of_key);
	}
	for (int t = 0; t < TABLES; t++)
		for (int i = 1, one = keys[t][0] && !keys[t][1]; i < KEYS && one; i++)
			if (own[((KEYS - 1) * t + i) % VFM_CLIP_CROPS][t][0])
				add_key(keys[t], own[((KEYS - 1) * t + i) % VFM_CLIP_CROPS][t][0]);
}

static inline __attribute__((always_inline)) void clip_keys_of(
	uint32_t keys[TABLES][KEYS], const struct vfm_clip_rows *r, int of_key)
{
	for (int at = 0; at < r->slots; at += LANES) {
		int n = r->slots - at < LANES ? r->slots - at : LANES;
		lanes size[COEFS] = {0};

		for (int k = 0; k < n; k++)
			for (int i = 0; i < COEFS; i++)
				size[i][k] = (int32_t)fminf(fabsf(r->x[at + k][i]) * weight[i] * 8, 1 << 24) << 6 | i;
		add_slots(keys, size, r->sign + at, r->strong + at, n, of_key);
	}
	add_crops(keys, r, of_key);
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void clip_keys_avx2(
	uint32_t keys[TABLES][KEYS], const struct vfm_clip_rows *r, int of_key)
{
	clip_keys_of(keys, r, of_key);
}
#endif

void vfm_clip_keys_of(uint32_t keys[TABLES][KEYS], const struct vfm_clip_rows *r, int of_key)
{
	pthread_once(&once, draw_groups);
	memset(keys, 0, sizeof(uint32_t[TABLES][KEYS]));
#if defined(__x86_64__)
	if (__builtin_cpu_supports("avx2")) {
		clip_keys_avx2(keys, r, of_key);
		return;
	}
#endif
	clip_keys_of(keys, r, of_key);
}

uint32_t vfm_clip_motion_key_of(const struct vfm_clip_rows *r, int table)
{
	uint32_t least = 0;

	pthread_once(&once, draw_groups);
	for (int k = 0; k + 1 < r->slots; k++) {
		uint8_t largest[MOTION];
		uint64_t sign = 0;
		uint32_t key;
		float sum = 0;

		for (int i = 0; i < COEFS; i++) {
			float d = r->x[k + 1][i] - r->x[k][i];

			sign |= (uint64_t)(d > 0) << i;
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
					largest[g] = (uint8_t)c;
				}
			}
		}
		key = slot_key_of(largest, MOTION, sign);
		least = !least || key < least ? key + !key : least;
	}
	return least;
}
