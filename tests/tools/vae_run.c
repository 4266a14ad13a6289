/* vae_run - encodes or decodes a file through lib/encoder/vae/vae.h, for comparisons, measurements of time and of
 * memory.
 *
 *	vae_run encode DIR f32|bf16 FRAMESxHEIGHTxWIDTH IN.u8 OUT.f32 [CHUNKS] [TILE,STRIDE]
 *	vae_run given DIR f32|bf16 FRAMESxHEIGHTxWIDTH IN.u8 OUT.f32 PICTURES
 *	vae_run decode DIR f32|bf16 TxHxW IN.f32 OUT.f32 [CHUNKS] [TILE,STRIDE]
 *
 * IN and OUT are raw arrays, "-" for none: then the input is noise.  CHUNKS "1,4,8": the counts of the pushes, the last
 * one repeated; "0": the whole clip.  One line of JSON on stdout: seconds to open and to compute, CPU seconds of
 * all threads for the latter, the peak of the process's memory in MiB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "base/philox.h"
#include "device/cpu/cpu.h"
#include "encoder/vae/vae.h"

static struct vfm_err err;

static void must(int rc)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "vae_run: %s\n", err.msg);
	exit(-rc);
}

/* Returns n bytes of the file; "-": NULL. */
static void *read_raw(const char *path, size_t n)
{
	void *p = vfm_big_alloc(n, path, &err);
	FILE *f;

	must(p ? 0 : VFM_EENV);
	if (!strcmp(path, "-"))
		return p;
	f = fopen(path, "rb");
	if (!f || fread(p, 1, n, f) != n || fgetc(f) != EOF) {
		fprintf(stderr, "vae_run: %s is not a file of %zu bytes\n", path, n);
		exit(1);
	}
	fclose(f);
	return p;
}

static void write_raw(const char *path, const void *data, size_t n)
{
	FILE *f = strcmp(path, "-") ? fopen(path, "wb") : NULL;

	if (strcmp(path, "-") && (!f || fwrite(data, 1, n, f) != n || fclose(f))) {
		fprintf(stderr, "vae_run: cannot write %s\n", path);
		exit(3);
	}
}

struct job {
	struct vfm_vae *v;
	int64_t dims[3], out[4]; /* of the output: T, C, h, w or T, h, w, 3 */
	const char *chunks;
	bool tiled;
	int given;
};

/* Returns the next count of "1,4,8", at most `left`. */
static int64_t next_chunk(const char **chunks, int64_t left)
{
	char *end;
	int64_t n = strtoll(*chunks, &end, 10);

	if (*end == ',')
		*chunks = end + 1;
	return n > left ? left : n;
}

static void encode(const struct job *j, const uint8_t *rgb, float *out)
{
	const int64_t *d = j->dims, frame = d[1] * d[2] * 3, latent = j->out[1] * j->out[2] * j->out[3];
	const char *chunks = j->chunks;
	struct vfm_vae_session *s;
	int64_t done = 0;
	int k = 0, got;

	if (j->given) {
		struct vfm_pictures p = {.rgb = rgb, .n = j->given, .height = (int)d[1], .width = (int)d[2]};

		must(vfm_vae_encode_given(j->v, &p, d[0], out, &err));
		return;
	}
	if (j->tiled || !strcmp(chunks, "0")) {
		must(vfm_vae_encode(j->v, rgb, d[0], d[1], d[2], out, &err));
		return;
	}
	must(vfm_vae_encode_begin(&s, j->v, d[1], d[2], &err));
	while (done < d[0]) {
		int64_t n = next_chunk(&chunks, d[0] - done);

		must(got = vfm_vae_encode_push(s, rgb + done * frame, n, out + k * latent, &err));
		done += n;
		k += got;
	}
	vfm_vae_end(s);
}

static void decode(const struct job *j, const float *z, float *out, uint8_t *rgb)
{
	const int64_t *d = j->dims;

	must(vfm_vae_decode(j->v, z, d[0], d[1], d[2], rgb, out, &err));
}

/* Without files: noise in, and of pictures u8 out. */
static void run(struct job *j, bool enc, const char *in_path, const char *out_path)
{
	const struct vfm_geometry *g = &vfm_vae_id(j->v)->geometry;
	const bool files = strcmp(in_path, "-") != 0;
	const int64_t *d = j->dims;
	const size_t in_n = (size_t)(j->given ? j->given : d[0]) * (size_t)(d[1] * d[2] * (enc ? 3 : g->channels));
	struct vfm_rng rng = vfm_rng_stream(1, 2, 3, VFM_RNG_TEST);
	size_t out_n = 1;
	void *in, *out;

	if (enc) {
		int32_t dims[3];

		must(vfm_geometry_latent(g, d[0], d[1], d[2], dims, &err));
		memcpy(j->out, (int64_t[]){dims[0], g->channels, dims[1], dims[2]}, sizeof(j->out));
	} else {
		memcpy(j->out, (int64_t[]){vfm_geometry_pictures(g, d[0]), d[1] * g->stride[1], d[2] * g->stride[2], 3},
			sizeof(j->out));
	}
	for (int i = 0; i < 4; i++)
		out_n *= (size_t)j->out[i];
	in = read_raw(in_path, in_n * (enc ? 1 : sizeof(float)));
	for (size_t i = 0; !files && i < in_n; i++) {
		if (enc)
			((uint8_t *)in)[i] = (uint8_t)vfm_rng_below(&rng, i, 256);
		else
			((float *)in)[i] = vfm_rng_normal(&rng, i);
	}
	out = read_raw("-", out_n * (enc || files ? sizeof(float) : 1));
	if (enc)
		encode(j, in, out);
	else
		decode(j, in, files ? out : NULL, files ? NULL : out);
	write_raw(out_path, out, out_n * (enc || files ? sizeof(float) : 1));
	vfm_big_free(in, in_n * (enc ? 1 : sizeof(float)));
	vfm_big_free(out, out_n * (enc || files ? sizeof(float) : 1));
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
		(double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

int main(int argc, char **argv)
{
	struct vfm_vae_opts o = {.path = argc > 2 ? argv[2] : NULL};
	struct job j = {.chunks = "0"};
	struct vfm_stream *s;
	struct vfm_dev *d;
	struct rusage u;
	double t0, t1, t2, cpu;
	bool enc;
	int tile, stride;

	if (argc < 7 || sscanf(argv[4], "%ldx%ldx%ld", &j.dims[0], &j.dims[1], &j.dims[2]) != 3) {
		fprintf(stderr,
			"usage: vae_run encode|given|decode DIR f32|bf16 FRAMESxHEIGHTxWIDTH IN OUT [CHUNKS|"
			"PICTURES] [TILE,STRIDE]\n");
		return 2;
	}
	enc = strcmp(argv[1], "decode") != 0;
	must(vfm_dtype_parse(argv[3], &o.dtype, &err));
	if (argc > 7 && !strcmp(argv[1], "given"))
		j.given = atoi(argv[7]);
	else if (argc > 7)
		j.chunks = argv[7];
	if (argc > 8 && sscanf(argv[8], "%d,%d", &tile, &stride) == 2) {
		o.tile = (struct vfm_vae_tile){tile, tile, stride, stride};
		j.tiled = true;
	}
	o.no_encoder = !enc, o.no_decoder = enc;
	d = vfm_cpu_open(&err);
	must(d ? 0 : VFM_EENV);
	s = d->t->stream_new(d, false, &err);
	t0 = vfm_now();
	must(vfm_vae_open(&j.v, s, &o, &err));
	t1 = vfm_now();
	cpu = cpu_seconds();
	run(&j, enc, argv[5], argv[6]);
	t2 = vfm_now();
	cpu = cpu_seconds() - cpu;
	getrusage(RUSAGE_SELF, &u);
	printf("{\"open_s\":%.3f,\"run_s\":%.3f,\"cpu_s\":%.3f,\"peak_mib\":%ld,\"device_mib\":%lld}\n", t1 - t0,
		t2 - t1, cpu, u.ru_maxrss / 1024, (long long)(d->mem_peak >> 20));
	vfm_vae_close(j.v);
	d->t->stream_free(s);
	d->t->dev_free(d);
	return 0;
}
