/* comm/host - communicators of processes, over shared memory and TCP.
 *
 * The handshake of connections, the flight recorder, and a tree of monitors that detects ranks that ended or hang, and
 * tells all others.
 *
 * Used by: comm/device, train/job, train/run
 * Calls: base, comm/coll, comm/launch, device/ops, io, spec/model
 * Read first: comm_host.h, host_job.h, monitor_impl.h
 */
