// SPDX-License-Identifier: Apache-2.0
#include "core/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "core/device_protocols.h"
#include "core/types.h"

namespace treering {
namespace {

// The error of a value that a variable does not take: what it takes, and an example.
Status refused(const char* variable, const std::string& text);

// Parses a number in [low, high] and multiplies it by `scale`; what is not scaled is a whole number. A small part of a
// unit does not become 0, which means none.
Status parse_integer(const std::string& text, const char* option, long low, long high, int scale, int* result) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !(value >= static_cast<double>(low)) ||
      !(value <= static_cast<double>(high)) || (scale == 1 && value != std::floor(value)))
    return refused(option, text);
  *result = static_cast<int>(scale == 1 || value == 0 ? value : std::max(1.0, std::round(value * scale)));
  return {};
}

constexpr double kMinLinkGbps = 0.001, kMaxLinkGbps = 100'000, kMaxLinkUs = 1'000'000;

Status parse_bool(const std::string& text, const char* option, bool* result) {
  if (text != "0" && text != "1") return refused(option, text);
  *result = text == "1";
  return {};
}

Status parse_ports(const std::string& text, Config* config) {
  const char* end = text.data() + text.size();
  int first = 0;
  auto [next, error] = std::from_chars(text.data(), end, first);
  int last = first;
  bool good = error == std::errc();
  if (good && next != end && *next == '-') {
    auto [stop, second_error] = std::from_chars(next + 1, end, last);
    good = second_error == std::errc();
    next = stop;
  }
  if (!good || next != end || first < 1 || last < first || last > 65535) return refused("TREERING_PORT", text);
  config->first_port = first;
  config->last_port = last;
  return {};
}

Status parse_link(const std::string& text, Config* config) {
  const char* end = text.data() + text.size();
  double gbps = 0, us = 0;
  const auto [comma, error] = std::from_chars(text.data(), end, gbps);
  if (error != std::errc() || comma == end || *comma != ',') return refused("TREERING_LINK", text);
  const auto [stop, second_error] =
      std::from_chars(std::find_if(comma + 1, end, [](char c) { return c != ' '; }), end, us);
  if (second_error != std::errc() || stop != end || !(gbps >= kMinLinkGbps && gbps <= kMaxLinkGbps) ||
      !(us > 0 && us <= kMaxLinkUs))
    return refused("TREERING_LINK", text);
  config->link_gbps = gbps;
  config->link_us = us;
  return {};
}

Status parse_metrics(const std::string& text, Config* config) {
  const bool is_port = text.starts_with(':');
  int port = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + (is_port ? 1 : 0), end, port);
  if (is_port && (error != std::errc() || stop != end || port < 1 || port > 65535))
    return refused("TREERING_METRICS", text);
  if (text.ends_with('/')) return refused("TREERING_METRICS", text);
  config->metrics = text;
  return {};
}

constexpr int kMaxFusion = 1 << 30;
constexpr int kMaxAlignment = 4096;
constexpr int kMaxLinkMbps = 1'000'000;
constexpr int kMaxGid = 255;
constexpr int kMaxServiceLevel = 15;
constexpr int kMaxTrafficClass = 255;
constexpr int kMaxVerbsTimeout = 31;
constexpr int kMaxDevice = 1023;
constexpr int kMinPiece = 64 << 10;
constexpr int kMaxPiece = 1 << 30;
constexpr const char* kAllTransports = "all but verbs and ucx";

const OptionRow kOptions[] = {
    {"timeout_ms", "TREERING_TIMEOUT", "seconds, 0 to 2000000 (0.5 is taken, too); 0 = none", "60", "300",
     "Deadline of every wait of a communicator. When it passes, every rank returns an error that names the rank that "
     "was waited for. In trConfig_t the unit is milliseconds.",
     true,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_TIMEOUT", 0, 2'000'000, 1000, &config->timeout_ms);
     },
     [](const Config& config) { return fmt::format("{} s", config.timeout_ms / 1000.0); }},
    {"warn_after", "TREERING_WARN_AFTER", "seconds, 0 to 2000000 (0.5 is taken, too); 0 = never", "60", "10",
     "A collective that has waited for so long asks the other ranks and says in the log, 0.7 s later, which one holds it "
     "up. It says so again after 2, 4, 8 times the time. "
     "The lowest rank that waits says so, after the time that it is set to itself; ranks that cannot read its memory may "
     "say so, too. Waits of GPUs, sends and receives are not logged.",
     false,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_WARN_AFTER", 0, 2'000'000, 1000, &config->warn_ms);
     },
     [](const Config& config) { return fmt::format("{} s", config.warn_ms / 1000.0); }},
    {"metrics", "TREERING_METRICS", "a file, or `:` and a port from 1 to 65535", ":9400", "none",
     "Counts calls, bytes, times and waits. They are written to the file every 10 s and at the end, or served over HTTP on the loopback "
     "interface; processes of a host after the first take the ports that follow (metrics.md).",
     false, parse_metrics,
     [](const Config& config) { return config.metrics.empty() ? std::string("none") : config.metrics; }},
    {"trace", "TREERING_TRACE", "a directory", "trace", "none",
     "Each process writes there when its calls began and ended, and for whom they waited; the last part of the path is made. "
     "`treering-trace` joins the files (metrics.md).",
     false,
     [](const std::string& text, Config* config) {
       config->trace = text;
       return Status();
     },
     [](const Config& config) { return config.trace.empty() ? std::string("none") : config.trace; }},
    {"algorithm", "TREERING_ALGO", "a list of `name` or `collective:name`", "allreduce:ring",
     "chosen by the cost model",
     "Forces algorithms for every size; a plain name counts for every collective that has it. An unknown name is an error "
     "that lists the known ones. One that cannot do what a call asks for (TREERING_DETERMINISTIC, compression, unequal blocks) is not "
     "used there, and rank 0 warns once.",
     true,
     [](const std::string& text, Config* config) {
       config->algorithm = text;
       return Status();
     },
     [](const Config& config) { return config.algorithm.empty() ? std::string("chosen") : config.algorithm; }},
    {"channels", "TREERING_CHANNELS", "0 to 4; 0 = chosen", "2", "0",
     "Independent pipelines of a collective. While one waits for a peer, another moves data.", true,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_CHANNELS", 0, kMaxChannels, 1, &config->channels);
     },
     [](const Config& config) { return std::to_string(config.channels); }},
    {"staging_bytes", "TREERING_STAGING", "bytes, 0 or 65536 to 268435456; 0 = chosen", "1048576", "0",
     "Shared memory of each rank through which ordinary (not registered) buffers are exchanged. It should stay in "
     "cache.",
     true,
     [](const std::string& text, Config* config) -> Status {
       if (text == "0") {
         config->staging_bytes = 0;
         return Status();
       }
       return parse_integer(text, "TREERING_STAGING", kMinStaging, kMaxStaging, 1, &config->staging_bytes);
     },
     [](const Config& config) { return std::to_string(config.staging_bytes); }},
    {"wide_partials", "TREERING_WIDE_PARTIALS", "0 or 1", "1", "0",
     "1: partial sums of 16-bit floats travel as float32, so that every algorithm rounds once.", true,
     [](const std::string& text, Config* config) {
       return parse_bool(text, "TREERING_WIDE_PARTIALS", &config->wide_partials);
     },
     [](const Config& config) { return std::string(config.wide_partials ? "1" : "0"); }},
    {"transports", "TREERING_TRANSPORTS",
     "list of in-process, shared-memory, cma, verbs, ucx, tcp; `^` in front excludes", "^cma", kAllTransports,
     "Transports that a pair of ranks may use; the first that is proved to work at init is used. `verbs` and `ucx` are "
     "used only where they are named, as in `shared-memory,verbs,tcp`.",
     true,
     [](const std::string& text, Config* config) {
       config->transports = text;
       return Status();
     },
     [](const Config& config) { return config.transports.empty() ? std::string(kAllTransports) : config.transports; }},
    {"deterministic", "TREERING_DETERMINISTIC", "0 or 1", "1", "0",
     "1: every result depends on the inputs and their ranks alone, bit for bit: operands are combined in the order of the "
     "ranks, whatever the size, algorithm, number of channels or placement.",
     true,
     [](const std::string& text, Config* config) {
       return parse_bool(text, "TREERING_DETERMINISTIC", &config->deterministic);
     },
     [](const Config& config) { return std::string(config.deterministic ? "1" : "0"); }},
    {"fusion_bytes", "TREERING_FUSION", "bytes, 0 to 1073741824; 0 = not at all", "67108864", "67108864",
     "Allreduces of a group with the same type and operation run as one, up to this many bytes each.", true,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_FUSION", 0, kMaxFusion, 1, &config->fusion_bytes);
     },
     [](const Config& config) { return std::to_string(config.fusion_bytes); }},
    {"fusion_alignment", "TREERING_FUSION_ALIGNMENT", "bytes, a power of two from 16 to 4096", "64", "64",
     "Tensors of a fused call begin at multiples of this in the messages. Larger values help vector units; they cost bytes.",
     true,
     [](const std::string& text, Config* config) -> Status {
       TR_RETURN_IF_ERROR(
           parse_integer(text, "TREERING_FUSION_ALIGNMENT", 16, kMaxAlignment, 1, &config->fusion_alignment));
       if ((config->fusion_alignment & (config->fusion_alignment - 1)) == 0) return {};
       return refused("TREERING_FUSION_ALIGNMENT", text);
     },
     [](const Config& config) { return std::to_string(config.fusion_alignment); }},
    {"wire", "TREERING_WIRE", "fp16, bf16, fp8-e4m3 or fp8-e5m2", "bf16", "none",
     "Sums and averages of float32 by allreduce travel in this type and are accumulated in float32 (compression.md).",
     true,
     [](const std::string& text, Config* config) -> Status {
       if (find_wire_type(text) == nullptr) return refused("TREERING_WIRE", text);
       config->wire = text;
       return {};
     },
     [](const Config& config) { return config.wire.empty() ? std::string("none") : config.wire; }},
    {"link_mbps", "TREERING_LINK_MBPS", "Mbit/s, 0 to 1000000; 0 = not paced", "1000", "0",
     "Paces what each rank sends, as a network link of that speed would. For trying out slow links on one machine.",
     true,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_LINK_MBPS", 0, kMaxLinkMbps, 1, &config->link_mbps);
     },
     [](const Config& config) { return std::to_string(config.link_mbps); }},
    {"link", "TREERING_LINK", "Gbit/s from 0.001 to 100000, a comma, microseconds above 0 up to 1000000", "25,10",
     "measured",
     "What the network between hosts carries, of one host and one way, and how long a small message takes: for the choice of "
     "algorithms, instead of what is measured when a communicator is created.",
     true, parse_link,
     [](const Config& config) {
       return config.link_gbps > 0 ? fmt::format("{},{}", config.link_gbps, config.link_us) : std::string("measured");
     }},
    {"device", "TREERING_DEVICE", "number of a GPU from 0, or -1 for none", "0", "-1",
     "The rank's GPU: memory of it may be passed as a buffer.", false,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_DEVICE", -1, kMaxDevice, 1, &config->device);
     },
     [](const Config& config) { return std::to_string(config.device); }},
    {"device_blocks", "TREERING_DEVICE_BLOCKS", "0 to 32; 0 = chosen", "16", "0",
     "Multiprocessors of the GPU that an operation of this rank may use at most; the least of all ranks counts. If none says "
     "so: as many as the links between the GPUs, as measured at init, can feed, 8 or more.",
     false,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_DEVICE_BLOCKS", 0, kMaxDeviceBlocks, 1, &config->device_blocks);
     },
     [](const Config& config) { return std::to_string(config.device_blocks); }},
    {"device_p2p", "TREERING_DEVICE_P2P", "0 or 1", "0", "1",
     "0: this rank's GPU and others do not reach one another, and the ranks' GPUs exchange through pinned memory of the host. It is "
     "enough that one rank is set so. Where all ranks share one GPU it changes nothing.",
     false,
     [](const std::string& text, Config* config) {
       return parse_bool(text, "TREERING_DEVICE_P2P", &config->device_p2p);
     },
     [](const Config& config) { return std::string(config.device_p2p ? "1" : "0"); }},
    {"host_id", "TREERING_HOSTID", "text", "rack1", "the boot of the machine",
     "Ranks with the same text count as on one host and try to share memory; others never do.", false,
     [](const std::string& text, Config* config) {
       config->host_id = text;
       return Status();
     },
     [](const Config& config) { return config.host_id; }},
    {"switches", "TREERING_SWITCHES", "names with dots between, the outermost switch first", "spine1.leaf3",
     "what Slurm says",
     "The switches that the rank's host hangs on. Rings and trees go through the hosts behind one before they go on to the next.",
     false,
     [](const std::string& text, Config* config) -> Status {
       if (text.starts_with('.') || text.ends_with('.') || text.find("..") != std::string::npos)
         return refused("TREERING_SWITCHES", text);
       config->switches = text;
       return {};
     },
     [](const Config& config) { return config.switches; }},
    {"socket_ifname", "TREERING_SOCKET_IFNAME",
     "prefixes of interface names, `=name` exactly, networks as 10.1.0.0/16; `^` in front of all excludes", "eth",
     "all but loopback and containers' bridges", "Network interfaces through which processes offer to be reached.",
     false,
     [](const std::string& text, Config* config) {
       config->socket_ifname = text;
       return Status();
     },
     [](const Config& config) { return config.socket_ifname; }},
    {"socket_family", "TREERING_SOCKET_FAMILY", "any, ipv4 or ipv6", "ipv4", "any", "Addresses that processes offer.",
     false,
     [](const std::string& text, Config* config) -> Status {
       if (text != "any" && text != "ipv4" && text != "ipv6") return refused("TREERING_SOCKET_FAMILY", text);
       config->socket_family = text == "any" ? "" : text;
       return {};
     },
     [](const Config& config) { return config.socket_family.empty() ? std::string("any") : config.socket_family; }},
    {"tcp_streams", "TREERING_TCP_STREAMS", "0 to 32; 0 = chosen", "4", "0",
     "Sockets that a rank opens to a peer that it reaches by TCP; large messages are striped across them by what each can carry. "
     "Chosen: one for each interface in a network of both, at most 4.",
     false,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_TCP_STREAMS", 0, kMaxTcpStreams, 1, &config->tcp_streams);
     },
     [](const Config& config) { return std::to_string(config.tcp_streams); }},
    {"tcp_congestion", "TREERING_TCP_CONGESTION", "a name that the kernel knows", "cubic", "chosen",
     "Congestion control of the TCP streams. By default the system's. If that is BBR, the library takes Reno instead; "
     "large messages on paths with round trips of 0.5 ms or more keep BBR.",
     false,
     [](const std::string& text, Config* config) {
       config->tcp_congestion = text;
       return Status();
     },
     [](const Config& config) {
       return config.tcp_congestion.empty() ? std::string("chosen") : config.tcp_congestion;
     }},
    {"verbs_devices", "TREERING_VERBS_DEVICES",
     "prefixes of device names, `=name` exactly, each also with `:port`; `^` in front of all excludes",
     "mlx5_0,=mlx5_1:2", "all",
     "Verbs devices (InfiniBand, RoCE) that may be used. A rank uses the active ports that are nearest to its cores, 4 at most.",
     false,
     [](const std::string& text, Config* config) {
       config->verbs_devices = text;
       return Status();
     },
     [](const Config& config) { return config.verbs_devices.empty() ? std::string("all") : config.verbs_devices; }},
    {"verbs_gid", "TREERING_VERBS_GID", "-1 to 255; -1 = chosen", "3", "-1",
     "Index of the verbs port's GID, its address. Chosen: RoCE v2 before v1, IPv4 before IPv6 before link-local.",
     false,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_VERBS_GID", -1, kMaxGid, 1, &config->verbs_gid);
     },
     [](const Config& config) { return std::to_string(config.verbs_gid); }},
    {"verbs_service_level", "TREERING_VERBS_SL", "0 to 15", "1", "0", "Service level of verbs queue pairs.", false,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_VERBS_SL", 0, kMaxServiceLevel, 1, &config->verbs_service_level);
     },
     [](const Config& config) { return std::to_string(config.verbs_service_level); }},
    {"verbs_traffic_class", "TREERING_VERBS_TC", "0 to 255", "106", "0",
     "Traffic class of verbs queue pairs over RoCE: the DSCP times 4.", false,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_VERBS_TC", 0, kMaxTrafficClass, 1, &config->verbs_traffic_class);
     },
     [](const Config& config) { return std::to_string(config.verbs_traffic_class); }},
    {"verbs_timeout", "TREERING_VERBS_TIMEOUT", "1 to 31", "14", "14 to 18, from TREERING_TIMEOUT",
     "How long a verbs device waits for an acknowledgement before it sends again: 4.096 us times 2 to the power of this. It does so 6 "
     "times. By default it gives up within an eighth of TREERING_TIMEOUT, but not before 0.47 s.",
     false,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_VERBS_TIMEOUT", 1, kMaxVerbsTimeout, 1, &config->verbs_timeout);
     },
     [](const Config& config) {
       return config.verbs_timeout > 0 ? std::to_string(config.verbs_timeout) : "from TREERING_TIMEOUT";
     }},
    {"watch_buffers", "TREERING_WATCH_BUFFERS", "0 or 1", "0", "1",
     "Over verbs, buffers of 64 KiB and more that are not of trMemAlloc or trCommRegister are registered with the devices once calls "
     "have used them a few times, and watched until their pages are given back. 0: they are copied.",
     false,
     [](const std::string& text, Config* config) {
       return parse_bool(text, "TREERING_WATCH_BUFFERS", &config->watch_buffers);
     },
     [](const Config& config) { return std::string(config.watch_buffers ? "1" : "0"); }},
    {"port", "TREERING_PORT", "a port from 1 to 65535 or a range a-b; one for each process of a machine", "20000-20099",
     "chosen by the kernel", "TCP port on which a process listens while it has communicators.", false, parse_ports,
     [](const Config& config) { return fmt::format("{}-{}", config.first_port, config.last_port); }},
    {"device_piece_bytes", "TREERING_DEVICE_PIECE", "bytes, 65536 to 1073741824", "4194304", "4194304",
     "Buffers of GPUs that go through memory of the host do so in pieces of at most this size; a rank pins six of them.",
     true,
     [](const std::string& text, Config* config) {
       return parse_integer(text, "TREERING_DEVICE_PIECE", kMinPiece, kMaxPiece, 1, &config->device_piece_bytes);
     },
     [](const Config& config) { return std::to_string(config.device_piece_bytes); }},
    {"device_protocol", "TREERING_DEVICE_PROTOCOL",
     "list of ll, ll128, simple, `^` in front excludes; or `collective:list` parts, with `;` between", "^ll128", "all",
     "Protocols that kernels of collectives may use (cuda.md); of several parts for a collective the last counts. Where "
     "none of them fits, simple is used.",
     true,
     [](const std::string& text, Config* config) -> Status {
       std::vector<ProtocolPart> parts;
       TR_RETURN_IF_ERROR(parse_protocols(text, &parts));
       config->device_protocol = text;
       return {};
     },
     [](const Config& config) { return config.device_protocol.empty() ? std::string("all") : config.device_protocol; }},
    {"name", nullptr, "text", "gradients", "none", "Name of the communicator in messages.", false,
     [](const std::string& text, Config* config) {
       config->name = text;
       return Status();
     },
     [](const Config& config) { return config.name; }},
};

const OptionRow& row_named(const char* name) {
  for (const OptionRow& row : kOptions)
    if (std::strcmp(row.name, name) == 0) return row;
  std::abort();
}

Status refused(const char* variable, const std::string& text) {
  for (const OptionRow& row : kOptions)
    if (row.environment != nullptr && std::strcmp(row.environment, variable) == 0)
      return {trInvalidArgument, fmt::format("{} is '{}'; give {} (for example {}={})", variable, text, row.values,
                                             variable, row.example)};
  std::abort();
}

// Fields that the caller's (perhaps older, shorter) struct does not have stay undefined.
Status read_user_config(const trConfig_t* user, trConfig_t* full) {
  *full = TR_CONFIG_INITIALIZER;
  if (user == nullptr) return {};
  if (user->magic != TR_CONFIG_MAGIC)
    return {trInvalidArgument, fmt::format("config->magic is {:#x}, not {:#x}: initialise the struct with "
                                           "TR_CONFIG_INITIALIZER",
                                           user->magic, TR_CONFIG_MAGIC)};
  if (user->size < offsetof(trConfig_t, timeout_ms))
    return {trInvalidArgument,
            fmt::format("config->size is {}: initialise the struct with TR_CONFIG_INITIALIZER", user->size)};
  std::memcpy(full, user, std::min(user->size, sizeof(*full)));
  return {};
}

}  // namespace

std::span<const OptionRow> option_table() { return kOptions; }

Status resolve_config(const trConfig_t* user, Config* config) {
  *config = Config();
  for (const OptionRow& row : kOptions) {
    const char* text = row.environment ? std::getenv(row.environment) : nullptr;
    if (text != nullptr && *text != '\0') TR_RETURN_IF_ERROR(row.parse(text, config));
  }
  trConfig_t full;
  TR_RETURN_IF_ERROR(read_user_config(user, &full));
  if (full.timeout_ms != TR_CONFIG_UNDEF_INT) {
    if (full.timeout_ms < 0)
      return {trInvalidArgument,
              fmt::format("config->timeout_ms is {}; give milliseconds, 0 (none) or more", full.timeout_ms)};
    config->timeout_ms = full.timeout_ms;
  }
  auto apply = [&](const char* name, int value) -> Status {
    if (value == TR_CONFIG_UNDEF_INT) return {};
    const OptionRow& row = row_named(name);
    if (row.parse(std::to_string(value), config).ok()) return {};
    return {trInvalidArgument, fmt::format("config->{} is {}; give {}", name, value, row.values)};
  };
  TR_RETURN_IF_ERROR(apply("wide_partials", full.wide_partials));
  TR_RETURN_IF_ERROR(apply("channels", full.channels));
  TR_RETURN_IF_ERROR(apply("staging_bytes", full.staging_bytes));
  TR_RETURN_IF_ERROR(apply("deterministic", full.deterministic));
  TR_RETURN_IF_ERROR(apply("fusion_bytes", full.fusion_bytes));
  TR_RETURN_IF_ERROR(apply("fusion_alignment", full.fusion_alignment));
  TR_RETURN_IF_ERROR(apply("link_mbps", full.link_mbps));
  TR_RETURN_IF_ERROR(apply("device", full.device));
  TR_RETURN_IF_ERROR(apply("device_blocks", full.device_blocks));
  TR_RETURN_IF_ERROR(apply("device_piece_bytes", full.device_piece_bytes));
  if (full.device_protocol != nullptr) {
    const OptionRow& row = row_named("device_protocol");
    if (Status parsed = row.parse(full.device_protocol, config); !parsed.ok()) {
      std::string why = parsed.message();
      if (why.starts_with(row.environment)) why.replace(0, std::strlen(row.environment), "config->device_protocol");
      return {parsed.code(), why};
    }
  }
  if (full.wire != nullptr && !row_named("wire").parse(full.wire, config).ok())
    return {trInvalidArgument, fmt::format("config->wire is '{}'; give {}", full.wire, row_named("wire").values)};
  if (full.algorithm != nullptr) config->algorithm = full.algorithm;
  if (full.transports != nullptr) config->transports = full.transports;
  if (full.name != nullptr) config->name = full.name;
  return {};
}

std::vector<std::string> agreed_settings(const Config& config) {
  std::vector<std::string> settings;
  for (const OptionRow& row : kOptions)
    if (row.must_agree)
      settings.push_back(fmt::format("{}{}={}", row.name,
                                     row.environment != nullptr ? fmt::format(" ({})", row.environment) : "",
                                     row.print(config)));
  return settings;
}

std::string options_markdown() {
  std::string text =
      "# Options\n\nGenerated from the table in src/core/config.cpp. A field of `trConfig_t` wins over the environment, which wins over "
      "the default.\nA variable that is empty counts as not set.\n\n| option | environment | values | default | meaning |\n|---|---|---|---|---|\n";
  for (const OptionRow& row : kOptions)
    text += fmt::format("| `{}` | {} | {} | {} | {} |\n", row.name,
                        row.environment ? fmt::format("`{}`", row.environment) : "", row.values, row.default_text,
                        row.documentation);
  text +=
      "\nVariables of the whole process, read once:\n\n| environment | values | default | meaning |\n|---|---|---|---|\n"
      "| `TREERING_DEBUG` | `ERROR`, `WARN`, `INFO`, `TRACE`, in upper or lower case | `WARN` | What is logged. |\n"
      "| `TREERING_DEBUG_FILE` | a path in a folder that exists; `%p` becomes the process id | standard error | Where it is logged. |\n"
      "| `TREERING_DEVICE_LIBRARY` | a shared object | libtreering-cuda.so.0 beside the library | Through it GPUs are used. |\n"
      "| `TREERING_CUDA_DRIVER` | a shared object | `libcuda.so.1` | The CUDA driver. |\n"
      "| `TREERING_VERBS_LIBRARY` | a shared object | libtreering-verbs.so.0 beside the library | Through it verbs devices are used. "
      "|\n"
      "| `TREERING_UCX_LIBRARY` | a shared object | libtreering-ucx.so.0 beside the library | Through it UCX is used. |\n"
      "\nA line of the log has the time, the host, the process id and, in most lines of one rank, the rank:\n\n"
      "    treering 2026-01-31 12:00:00.123 node7:4711 rank 3 I: text\n";
  return text;
}

}  // namespace treering
