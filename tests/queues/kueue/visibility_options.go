// Package visibility: this file is compiled into a copy of Kueue's package of the same name, which has no option for the
// port of its server in every release, and reads its certificate from a folder of the root.
package visibility

import (
	"flag"
	"net"
	"os"
	"strconv"

	genericoptions "k8s.io/apiserver/pkg/server/options"
)

// applyEnvironment makes the server listen on a port of the loopback address, with the certificate of the webhooks.
func applyEnvironment(o *genericoptions.RecommendedOptions) {
	port, err := strconv.Atoi(os.Getenv("KUEUE_VISIBILITY_PORT"))
	if err != nil {
		panic(err)
	}
	o.SecureServing.BindAddress = net.ParseIP("127.0.0.1")
	o.SecureServing.BindPort = port
	certificates := os.Getenv("KUEUE_CERTIFICATES")
	o.SecureServing.ServerCert.CertKey.CertFile = certificates + "/tls.crt"
	o.SecureServing.ServerCert.CertKey.KeyFile = certificates + "/tls.key"
	kubeconfig := flag.Lookup("kubeconfig").Value.String()
	o.Authentication.RemoteKubeConfigFile = kubeconfig
	o.Authorization.RemoteKubeConfigFile = kubeconfig
	o.CoreAPI.CoreAPIKubeconfigPath = kubeconfig
}
