/* clip_run - encodes pictures through lib/encoder/image/clip_vision.h, for comparisons and measurements of time.
 *
 *	clip_run rows|pixels DIR DEVICE OUT.f32 HEIGHTxWIDTH:IN.u8 ...
 *
 * Writes the rows of all pictures, or the input of the network, to OUT.  One line of JSON on stdout: sizes, seconds to
 * open and to compute, CPU seconds of all threads for the latter, the peak of the process's memory in MiB. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/clock.h"
#include "base/mem.h"
#include "device/open/open.h"
#include "encoder/image/clip_vision_impl.h"

static struct vfm_err err;

static void must(int rc)
{
	if (rc >= 0)
		return;
	fprintf(stderr, "clip_run: %s\n", err.msg);
	exit(-rc);
}

static double cpu_seconds(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
		(double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) * 1e-6;
}

/* Reads the picture HEIGHTxWIDTH:FILE. */
static uint8_t *read_picture(const char *arg, int *height, int *width)
{
	uint8_t *rgb;
	int end = 0;
	size_t n;
	FILE *f;

	if (sscanf(arg, "%dx%d:%n", height, width, &end) != 2 || !end) {
		fprintf(stderr, "clip_run: expected HEIGHTxWIDTH:FILE, got '%s'\n", arg);
		exit(2);
	}
	n = (size_t)*height * (size_t)*width * 3;
	rgb = vfm_malloc(n);
	f = fopen(arg + end, "rb");
	if (!f || fread(rgb, 1, n, f) != n || fgetc(f) != EOF) {
		fprintf(stderr, "clip_run: %s is not a file of %zu bytes\n", arg + end, n);
		exit(1);
	}
	fclose(f);
	return rgb;
}

int main(int argc, char **argv)
{
	const struct vfm_device_opts where = {.local_rank = 0, .local_size = 1, .size = 1};
	const bool pixels = argc > 1 && !strcmp(argv[1], "pixels");
	struct vfm_clip_vision *v;
	struct vfm_device device = {0};
	double t0, t1, cpu, run = 0;
	struct rusage u;
	size_t n;
	float *x;
	FILE *f;

	if (argc < 6 || (!pixels && strcmp(argv[1], "rows") != 0)) {
		fprintf(stderr, "usage: clip_run rows|pixels DIR DEVICE OUT HEIGHTxWIDTH:IN ...\n");
		return 2;
	}
	must(vfm_device_open_rank(&device, argv[3], &where, &err));
	t0 = vfm_now();
	must(vfm_clip_vision_open(&v, device.stream, argv[2], &err));
	t1 = vfm_now();
	n = pixels ? 3 * (size_t)v->d.image * (size_t)v->d.image : (size_t)v->d.rows * (size_t)v->d.dim;
	x = vfm_malloc(n * sizeof(*x));
	f = fopen(argv[4], "wb");
	cpu = cpu_seconds();
	for (int i = 5; i < argc; i++) {
		int height, width;
		uint8_t *rgb = read_picture(argv[i], &height, &width);
		double begin = vfm_now();

		if (pixels)
			must(vision_picture_pixels(&v->picture, rgb, height, width, x, &err));
		else
			must(vfm_clip_vision_encode(v, rgb, height, width, x, &err));
		run += vfm_now() - begin;
		if (!f || fwrite(x, sizeof(*x), n, f) != n) {
			fprintf(stderr, "clip_run: cannot write %s\n", argv[4]);
			return 3;
		}
		free(rgb);
	}
	getrusage(RUSAGE_SELF, &u);
	printf("{\"rows\":%d,\"dim\":%d,\"side\":%d,\"name\":\"%s\",\"sha256\":\"%s\",\"open_s\":%.3f,\"run_s\":%.3f,"
	       "\"cpu_s\":%.3f,\"peak_mib\":%ld}\n",
		v->id.rows, v->id.dim, v->picture.side, v->id.name, v->id.sha256, t1 - t0, run, cpu_seconds() - cpu,
		u.ru_maxrss / 1024);
	vfm_clip_vision_close(v);
	vfm_device_close(&device);
	free(x);
	return fclose(f) ? 3 : 0;
}
